#include "bench/memory/hazard_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "mp_server/index/reclaim.h"
#include "mp_server/store/evictor.h"
#include "mp_server/store/namespace_store.h"
#include "mp_server/store/object_store.h"
#include "proto/shm_layout.h"

namespace ems::bench {
namespace {

using server::HazardBoard;
using server::ObjectStore;

constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr uint64_t kPutsPerRound = 500;
constexpr Duration kReadyTimeout = std::chrono::seconds(60);

Result<HazardBoard::Page> MakePage() {
  EMS_ASSIGN_OR_RETURN(fabric::ShmSegment memory,
                       fabric::ShmSegment::CreatePages(shm::kSessionBytes, true));
  auto* const page = new (memory.bytes().data()) shm::SessionPage;
  page->hazard_end = shm::kHazardsMax;
  // Generations begin at a random number: this one is not reached.
  for (auto& hazard : page->hazards) hazard = UINT64_MAX;
  return std::make_shared<const fabric::ShmSegment>(std::move(memory));
}

class Puts final {
 public:
  Puts(ObjectStore* store, uint64_t value_bytes, HazardCost* cost)
      : store_(*store), value_bytes_(value_bytes), cost_(*cost) {}
  Status Round(uint64_t puts, LatencyRecorder* latencies) {
    for (uint64_t i = 0; i < puts; ++i) {
      const std::string key = fmt::format("a-key-as-long-as-a-hash-{:016}", count_++);
      const TimePoint start = Clock::System().Now();
      Result<server::Reservation> room = store_.Reserve(kNs, SlotId(0), key, value_bytes_);
      if (room.status().code() == StatusCode::kResourceExhausted) {
        ++cost_.refused;
        continue;
      }
      if (!room.ok()) return room.status();
      bool stored = false;
      EMS_RETURN_IF_ERROR(ObjectStore::Publish(*std::move(room), count_, {}, &stored));
      latencies->Record(Clock::System().Now() - start);
    }
    return OkStatus();
  }

 private:
  ObjectStore& store_;
  const uint64_t value_bytes_;
  HazardCost& cost_;
  uint64_t count_ = 0;
};

}  // namespace

Result<HazardCost> MeasureHazardCost(const MemorySettings& settings, uint64_t sessions,
                                     uint64_t value_bytes) {
  server::SegmentPool pool(PoolOptions(settings));
  ObjectStore store({.pool = &pool});
  server::Evictor evictor(&store);
  NamespaceTable table;
  table.version = 1;
  NamespaceInfo info;
  info.ref = kNs;
  info.name = "hazards";
  table.by_id[kNs.id] = info;
  store.SetNamespaces(table, 1.0);
  store.SetOwnedSlots(std::bitset<kSlotCount>().set());
  EMS_RETURN_IF_ERROR(pool.WaitReady(settings.pool_bytes, Deadline::After(kReadyTimeout)));
  EMS_ASSIGN_OR_RETURN(const auto shared, store.Share(kNs));
  std::vector<HazardBoard::Page> pages;
  for (uint64_t i = 0; i < sessions; ++i) {
    EMS_ASSIGN_OR_RETURN(auto page, MakePage());
    pages.push_back(std::move(page));
  }
  HazardCost cost;
  cost.sessions = sessions;
  cost.hazards = shm::kHazardsMax;
  Puts puts(&store, value_bytes, &cost);
  LatencyRecorder filling;
  EMS_RETURN_IF_ERROR(puts.Round(2 * settings.pool_bytes / value_bytes, &filling));
  cost.refused = 0;
  const uint64_t rounds = std::max<uint64_t>(1, settings.insertions / kPutsPerRound);
  for (uint64_t round = 0; round < rounds; ++round) {
    EMS_RETURN_IF_ERROR(puts.Round(kPutsPerRound, &cost.without));
    for (size_t i = 0; i < pages.size(); ++i) shared->sharing().AddSession(i + 1, pages[i]);
    EMS_RETURN_IF_ERROR(puts.Round(kPutsPerRound, &cost.with));
    for (size_t i = 0; i < pages.size(); ++i) shared->sharing().RemoveSession(i + 1);
  }
  return cost;
}

}  // namespace ems::bench
