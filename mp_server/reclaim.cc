#include "mp_server/reclaim.h"

#include <algorithm>
#include <utility>

#include "common/full_fence.h"

namespace ems::server {
namespace {

const shm::SessionPage& PageOf(const fabric::ShmSegment& memory) {
  return *reinterpret_cast<const shm::SessionPage*>(memory.bytes().data());
}

uint32_t UsedSlots(const shm::SessionPage& page) {
  return std::min(page.hazard_end.load(std::memory_order_acquire), shm::kHazardsMax);
}

}  // namespace

void HazardBoard::Add(uint64_t session, Page page) {
  auto sessions = sessions_.Lock();
  sessions->push_back({session, std::move(page)});
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

void HazardBoard::Remove(uint64_t session) {
  auto sessions = sessions_.Lock();
  std::erase_if(*sessions, [&](const Session& one) { return one.id == session; });
  count_.store(static_cast<uint32_t>(sessions->size()), std::memory_order_release);
}

bool HazardBoard::IsNamed(uint64_t generation) {
  FullFence();
  if (empty()) return false;
  auto sessions = sessions_.Lock();
  for (const Session& session : *sessions) {
    const shm::SessionPage& page = PageOf(*session.page);
    const uint32_t used = UsedSlots(page);
    for (uint32_t i = 0; i < used; ++i) {
      if (page.hazards[i].load(std::memory_order_relaxed) >> 8 == generation) return true;
    }
  }
  return false;
}

std::vector<HazardBoard::Hazard> HazardBoard::Collect() {
  FullFence();
  std::vector<Hazard> hazards;
  {
    auto sessions = sessions_.Lock();
    for (const Session& session : *sessions) {
      const shm::SessionPage& page = PageOf(*session.page);
      const uint32_t used = UsedSlots(page);
      for (uint32_t i = 0; i < used; ++i) {
        const uint64_t word = page.hazards[i].load(std::memory_order_relaxed);
        if (word != 0) hazards.push_back({word >> 8, session.id});
      }
    }
  }
  std::sort(hazards.begin(), hazards.end());
  return hazards;
}

}  // namespace ems::server
