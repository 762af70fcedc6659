#include "mp_server/index/reclaim.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/check.h"
#include "common/full_fence.h"

namespace ems::server {
namespace {

const shm::SessionPage& PageOf(const fabric::ShmSegment& memory) {
  return *reinterpret_cast<const shm::SessionPage*>(memory.bytes().data());
}

uint32_t UsedHazards(const shm::SessionPage& page) {
  return std::min(page.hazard_end.load(std::memory_order_acquire), shm::kHazardsMax);
}

uint64_t GenerationOf(uint64_t word) { return word >> 8; }

// Tells most generations that are not in a set from those that are, by one bit: it stays in the
// processor's first cache while a million words are looked at.
class Sieve final {
 public:
  explicit Sieve(std::span<const uint64_t> generations) {
    for (const uint64_t one : generations) bits_[WordOf(one)] |= BitOf(one);
  }
  bool MayHave(uint64_t generation) const {
    return (bits_[WordOf(generation)] & BitOf(generation)) != 0;
  }

 private:
  static constexpr size_t kWords = 64;
  static size_t WordOf(uint64_t generation) { return generation / 64 % kWords; }
  static uint64_t BitOf(uint64_t generation) { return uint64_t{1} << generation % 64; }
  std::array<uint64_t, kWords> bits_{};
};

}  // namespace

void HazardBoard::Add(uint64_t session, Page page) {
  EMS_CHECK(page != nullptr && page->size_bytes() >= sizeof(shm::SessionPage),
            "session {} without a whole page", session);
  auto sessions = sessions_.Lock();
  sessions->push_back({session, std::move(page)});
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

void HazardBoard::Remove(uint64_t session) {
  if (frozen_.load(std::memory_order_acquire)) return;
  auto sessions = sessions_.Lock();
  std::erase_if(*sessions, [&](const Session& one) { return one.id == session; });
  words_.store(0, std::memory_order_relaxed);  // until the next look
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

template <typename Visit>
void HazardBoard::Look(Visit visit) {
  FullFence();
  if (empty()) return;
  uint32_t words = 0;
  bool more = true;
  auto sessions = sessions_.Lock();
  for (const Session& session : *sessions) {
    const shm::SessionPage& page = PageOf(*session.page);
    const uint32_t used = UsedHazards(page);
    words += used;
    for (uint32_t i = 0; more && i < used; ++i) {
      const uint64_t word = page.hazards[i].load(std::memory_order_relaxed);
      if (word != 0) more = visit(word, session.id);
    }
  }
  words_.store(words, std::memory_order_relaxed);
}

bool HazardBoard::IsNamed(uint64_t generation) {
  bool named = false;
  Look([&](uint64_t word, uint64_t) {
    named = GenerationOf(word) == generation;
    return !named;
  });
  return named;
}

void HazardBoard::Forget() {
  auto sessions = sessions_.Lock();
  sessions->clear();
  count_.store(0, std::memory_order_release);
}

std::vector<uint64_t> HazardBoard::Named() {
  std::vector<uint64_t> named;
  Look([&](uint64_t word, uint64_t) {
    named.push_back(GenerationOf(word));
    return true;
  });
  std::sort(named.begin(), named.end());
  return named;
}

std::vector<HazardBoard::Hazard> HazardBoard::Naming(std::span<const uint64_t> generations) {
  EMS_CHECK(std::is_sorted(generations.begin(), generations.end()), "{} generations in disorder",
            generations.size());
  const Sieve sieve(generations);
  std::vector<Hazard> naming;
  Look([&](uint64_t word, uint64_t session) {
    const uint64_t generation = GenerationOf(word);
    if (sieve.MayHave(generation) &&
        std::binary_search(generations.begin(), generations.end(), generation))
      naming.push_back({generation, session});
    return true;
  });
  std::sort(naming.begin(), naming.end());
  return naming;
}

}  // namespace ems::server
