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
// What is hashed on its way past the caches waits here, in the nearest one: larger is slower.
constexpr uint64_t kBounceBytes = 4 * kKiB;

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

// Lines of 64 bytes; `into` is 16-byte aligned. Asking for a line ahead of its use never faults,
// behind the end either.
void StreamLines(std::byte* into, const std::byte* from, uint64_t lines) {
  constexpr uint64_t kAhead = 2 * kKiB;
  for (; lines > 0; --lines, into += kLineBytes, from += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T0);
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

void CopyPast(std::byte* into, const std::byte* from, uint64_t bytes) {
  const uint64_t head = std::min(-reinterpret_cast<uintptr_t>(into) % sizeof(__m128i), bytes);
  std::memcpy(into, from, head);
  const uint64_t lines = (bytes - head) / kLineBytes;
  StreamLines(into + head, from + head, lines);
  const uint64_t done = head + lines * kLineBytes;
  std::memcpy(into + done, from + done, bytes - done);
}

void CopyStreaming(MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  if (hasher == nullptr) {
    CopyPast(into.data(), from, into.size());
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
      CopyPast(into.data() + at, bounce.data(), bytes);
    }
  }
  _mm_sfence();  // streaming stores are in no order with others
}

#else

constexpr bool kCanStream = false;
void CopyStreaming(MutableBytes, const std::byte*, PieceHasher*) {}

#endif

enum class Way : uint8_t { kCached, kStreaming };

// Which of two ways is the faster one: they run against each other, one right after the other so
// that both see the same neighbours on the machine, and the one that has lately won more often is
// taken. Threading: thread-safe; of rounds that threads play at the same time some are lost.
class FasterWay final {
 public:
  struct Turn {
    Way way = Way::kCached;
    bool measured = false;
  };
  Turn Next() {
    const uint32_t turn = turns_.fetch_add(1, std::memory_order_relaxed);
    const uint32_t at = turn < kFirstTurns ? turn % 2 : turn % kRoundEvery;
    if (at < 2) return {at == 0 ? Way::kCached : Way::kStreaming, true};
    return {lead_.load(std::memory_order_relaxed) > 0 ? Way::kStreaming : Way::kCached, false};
  }
  void Note(Way way, uint64_t bytes, Duration took) {
    const uint64_t ns_per_mib = static_cast<uint64_t>(took.count()) * kMiB / bytes;
    if (way == Way::kCached) return cached_.store(ns_per_mib, std::memory_order_relaxed);
    const uint64_t cached = cached_.exchange(0, std::memory_order_relaxed);
    if (cached == 0) return;
    const int lead = lead_.load(std::memory_order_relaxed) + (ns_per_mib < cached ? 1 : -1);
    lead_.store(std::clamp(lead, -kLeadMax, kLeadMax), std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kFirstTurns = 16;
  static constexpr uint32_t kRoundEvery = 64;
  static constexpr int kLeadMax = 8;
  std::atomic<uint32_t> turns_{0};
  std::atomic<uint64_t> cached_{0};  // of the round being played; 0: none
  std::atomic<int> lead_{0};         // rounds that streaming is ahead
};

void CopyBy(Way way, MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  if (way == Way::kStreaming) return CopyStreaming(into, from, hasher);
  if (hasher != nullptr) return CopyCachedAndHash(into, from, hasher);
  CopyCached(into.data(), from, into.size());
}

}  // namespace

void CopyValue(MutableBytes into, const std::byte* from, PieceHasher* hasher) {
  if (into.empty()) return;
  if (!kCanStream || into.size() < kLargeCopyBytes) return CopyBy(Way::kCached, into, from, hasher);
  static FasterWay plain, hashed;
  FasterWay& ways = hasher == nullptr ? plain : hashed;
  const FasterWay::Turn turn = ways.Next();
  if (!turn.measured) return CopyBy(turn.way, into, from, hasher);
  const TimePoint start = Clock::System().Now();
  CopyBy(turn.way, into, from, hasher);
  ways.Note(turn.way, into.size(), Clock::System().Now() - start);
}

}  // namespace ems
