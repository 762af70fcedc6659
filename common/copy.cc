#include "common/copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "common/clock.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ems {
namespace {

constexpr uint64_t kPageBytes = 4 * kKiB;
constexpr uint64_t kLineBytes = 64;
// What is hashed on its way past the caches waits in so much memory, which stays in the nearest
// one. A smaller one leaves the memory idle more often while there is hashing.
constexpr uint64_t kBounceBytes = 16 * kKiB;

// For medium sizes memcpy takes the CPU's own string copy, which is two to three times slower when
// the destination lies a few bytes further in its page than the source: just what a value that
// starts a page and a large buffer from malloc (which starts 16 bytes into one) make.
bool IsSlowForMemcpy(const std::byte* into, const std::byte* from, uint64_t bytes) {
  constexpr uint64_t kStringCopyMin = 2 * kKiB;
  constexpr uint64_t kStringCopyMax = 512 * kKiB;
  const uint64_t shift =
      (reinterpret_cast<uintptr_t>(into) - reinterpret_cast<uintptr_t>(from)) % kPageBytes;
  return bytes >= kStringCopyMin && bytes < kStringCopyMax && shift > 0 && shift < kLineBytes;
}

void CopyLines(std::byte* into, const std::byte* from, uint64_t bytes) {
  struct Line {
    std::array<std::byte, kLineBytes> bytes;
  };
  uint64_t at = 0;
  for (; at + sizeof(Line) <= bytes; at += sizeof(Line)) {
    Line line;  // a few vector registers
    std::memcpy(&line, from + at, sizeof(line));
    std::memcpy(into + at, &line, sizeof(line));
  }
  std::memcpy(into + at, from + at, bytes - at);
}

void CopyCached(std::byte* into, const std::byte* from, uint64_t bytes) {
  if (IsSlowForMemcpy(into, from, bytes)) {
    CopyLines(into, from, bytes);
  } else {
    std::memcpy(into, from, bytes);
  }
}

void CopyCachedAndHash(MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  // In pieces, which are hashed from the cache.
  for (uint64_t at = 0; at < into.size(); at += kPieceBytes) {
    const MutableBytes part = into.subspan(at, std::min(kPieceBytes, into.size() - at));
    CopyCached(part.data(), from + at, part.size());
    hasher->Update(part);
  }
}

#if defined(__x86_64__)

constexpr bool kCanStream = true;

// Lines of 64 bytes; `into` is 16-byte aligned. As many lines from `next` on are asked for, ahead
// of their use; that never faults, behind the end either.
void StreamLines(std::byte* into, const std::byte* from, uint64_t lines, const std::byte* next) {
  for (; lines > 0; --lines, into += kLineBytes, from += kLineBytes, next += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(into);
    const __m128i first = _mm_loadu_si128(in), second = _mm_loadu_si128(in + 1);
    const __m128i third = _mm_loadu_si128(in + 2), fourth = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, first);
    _mm_stream_si128(out + 1, second);
    _mm_stream_si128(out + 2, third);
    _mm_stream_si128(out + 3, fourth);
  }
}

void CopyPast(std::byte* into, const std::byte* from, uint64_t bytes, const std::byte* next) {
  const uint64_t head = std::min(-reinterpret_cast<uintptr_t>(into) % sizeof(__m128i), bytes);
  std::memcpy(into, from, head);
  const uint64_t lines = (bytes - head) / kLineBytes;
  StreamLines(into + head, from + head, lines, next);
  const uint64_t done = head + lines * kLineBytes;
  std::memcpy(into + done, from + done, bytes - done);
}

void CopyStreaming(MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  if (hasher == nullptr) {
    constexpr uint64_t kAhead = 2 * kKiB;
    CopyPast(into.data(), from, into.size(), from + kAhead);
  } else {
    // Bytes that lie a little further in their page than those they are copied from are copied at
    // half the speed: the nearest cache tells addresses apart by their place in the page.
    constexpr uint64_t kApart = kKiB;
    alignas(kLineBytes) std::array<std::byte, kBounceBytes + kPageBytes> room;
    const uint64_t skip =
        (reinterpret_cast<uintptr_t>(from) + kApart - reinterpret_cast<uintptr_t>(room.data())) %
        kPageBytes / kLineBytes * kLineBytes;
    const MutableBytes bounce = std::span(room).subspan(skip, kBounceBytes);
    for (uint64_t at = 0; at < into.size(); at += kBounceBytes) {
      const uint64_t bytes = std::min(kBounceBytes, into.size() - at);
      std::memcpy(bounce.data(), from + at, bytes);
      hasher->Update(bounce.first(bytes));
      CopyPast(into.data() + at, bounce.data(), bytes, from + at + bytes);
    }
  }
  _mm_sfence();  // streaming stores are in no order with others
}

#else

constexpr bool kCanStream = false;
void CopyStreaming(MutableBytes, const std::byte*, PieceHasher*) {}

#endif

enum class Way : uint8_t { kCached, kStreaming };

// Chooses the faster one of two ways to copy: they run against each other, one right after the
// other in the same copy so that both see the same load on the machine, and the one that has won
// more often of late is taken. Threading: thread-safe.
class FasterWay final {
 public:
  Way leader() const {
    return lead_.load(std::memory_order_relaxed) > 0 ? Way::kStreaming : Way::kCached;
  }
  // How much of the next `bytes` may go by the leader before the next match; 0: it is due.
  uint64_t UntilMatch(uint64_t bytes) const {
    const uint64_t until = next_match_.load(std::memory_order_relaxed);
    const uint64_t copied = copied_.load(std::memory_order_relaxed);
    return until <= copied ? 0 : std::min(bytes, until - copied);
  }
  void Copied(uint64_t bytes) { copied_.fetch_add(bytes, std::memory_order_relaxed); }
  // Which way goes first in the match that begins now.
  Way BeginMatch() {
    const uint32_t number = matches_.fetch_add(1, std::memory_order_relaxed);
    next_match_.store(copied_.load(std::memory_order_relaxed) +
                          (number < kFirstMatches ? kFirstEvery : kMatchEvery),
                      std::memory_order_relaxed);
    return number % 2 == 0 ? Way::kCached : Way::kStreaming;
  }
  void EndMatch(Way winner) {
    const int lead = lead_.load(std::memory_order_relaxed) + (winner == Way::kStreaming ? 1 : -1);
    lead_.store(std::clamp(lead, -kLeadMax, kLeadMax), std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kFirstMatches = 16;
  static constexpr uint64_t kFirstEvery = 2 * kMiB;
  static constexpr uint64_t kMatchEvery = 32 * kMiB;
  static constexpr int kLeadMax = 8;
  std::atomic<uint64_t> copied_{0}, next_match_{0};
  std::atomic<uint32_t> matches_{0};
  std::atomic<int> lead_{0};  // matches that streaming is ahead
};

void CopyBy(Way way, MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  if (way == Way::kStreaming) return CopyStreaming(into, from, hasher);
  if (hasher != nullptr) return CopyCachedAndHash(into, from, hasher);
  CopyCached(into.data(), from, into.size());
}

constexpr uint64_t kMatchBytes = kMiB / 2;  // of either way, at most

// Copies a part of `into` by both ways, one half each, and notes which one was faster. Returns how
// long that part is.
uint64_t PlayMatch(FasterWay* ways, MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  const uint64_t half = std::min(kMatchBytes, into.size() / 2 / kPieceBytes * kPieceBytes);
  const Way first = ways->BeginMatch();
  const Way second = first == Way::kCached ? Way::kStreaming : Way::kCached;
  const TimePoint start = Clock::System().Now();
  CopyBy(first, into.first(half), from, hasher);
  const TimePoint middle = Clock::System().Now();
  CopyBy(second, into.subspan(half, half), from + half, hasher);
  ways->EndMatch(middle - start < Clock::System().Now() - middle ? first : second);
  return 2 * half;
}

}  // namespace

void CopyValue(MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  if (into.empty()) return;
  if (!kCanStream || into.size() < kLargeCopyBytes) return CopyBy(Way::kCached, into, from, hasher);
  static FasterWay plain, hashed;
  FasterWay& ways = hasher == nullptr ? plain : hashed;
  while (!into.empty()) {
    uint64_t part = ways.UntilMatch(into.size());
    if (part == 0 && into.size() >= kLargeCopyBytes) {
      part = PlayMatch(&ways, into, from, hasher);
    } else {
      // A rest that is too short for a match, or for its own part, goes with what is before it.
      if (part == 0 || into.size() - part < kLargeCopyBytes) part = into.size();
      part = part == into.size() ? part : RoundUp(part, kPieceBytes);
      CopyBy(ways.leader(), into.first(part), from, hasher);
    }
    ways.Copied(part);
    into = into.subspan(part);
    from += part;
  }
}

}  // namespace ems
