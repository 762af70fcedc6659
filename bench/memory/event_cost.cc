#include "bench/memory/event_cost.h"

#include <algorithm>
#include <bitset>
#include <memory>
#include <string>

#include "bench/harness/figures.h"
#include "common/metrics.h"
#include "mp_server/kv_events/event_publisher.h"
#include "mp_server/store/evictor.h"
#include "mp_server/store/object_store.h"

namespace ems::bench {
namespace {

using server::ObjectStore;

constexpr uint64_t kPutsPerRound = 200;
constexpr Duration kReadyTimeout = std::chrono::seconds(30);
constexpr SlotId kSlot{0};
constexpr size_t kQueueEvents = 65'536;

NamespaceRef RefOf(uint32_t number) { return {NamespaceId(number), 1}; }
enum Side : uint32_t { kOn = 1, kOff = 2 };

NamespaceTable BothSides() {
  NamespaceTable table;
  for (const uint32_t number : {kOn, kOff}) {
    NamespaceInfo info;
    info.ref = RefOf(number);
    info.name = number == kOn ? "on" : "off";
    table.by_id[info.ref.id] = info;
  }
  return table;
}

// Microseconds a Put. What finds no room just then, as memory changes hands, is counted as refused.
Result<double> PutRound(ObjectStore& store, Side side, uint64_t round, uint64_t value_bytes,
                        uint64_t* refused) {
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < kPutsPerRound; ++i)
    keys.push_back(fmt::format("a-key-as-long-as-a-hash-{:016}", round * kPutsPerRound + i));
  const TimePoint start = Clock::System().Now();
  for (const std::string& key : keys) {
    Result<server::Reservation> room = store.Reserve(RefOf(side), kSlot, key, value_bytes);
    if (room.status().code() == StatusCode::kResourceExhausted) {
      ++*refused;
      continue;
    }
    if (!room.ok()) return room.status();
    bool stored = false;
    EMS_RETURN_IF_ERROR(ObjectStore::Publish(*std::move(room), round, {}, &stored));
  }
  const std::chrono::duration<double, std::micro> took = Clock::System().Now() - start;
  return took.count() / static_cast<double>(kPutsPerRound);
}

}  // namespace

Result<EventCost> MeasureEventCost(const MemorySettings& settings, uint64_t value_bytes) {
  kv_events::BlockEvents events(kQueueEvents);
  server::SegmentPool pool(PoolOptions(settings));
  ObjectStore store({.pool = &pool, .events = &events, .events_of = "on"});
  server::Evictor evictor(&store);
  store.SetNamespaces(BothSides(), 1.0);
  store.SetOwnedSlots(std::bitset<kSlotCount>().set());
  EMS_RETURN_IF_ERROR(pool.WaitReady(settings.pool_bytes, Deadline::After(kReadyTimeout)));
  MetricsRegistry registry;
  kv_events::EventPublisher::Options options;
  options.sockets = {"127.0.0.1:0", "127.0.0.1:0", 1000};
  options.events = &events;
  options.metrics = {.events = registry.AddCounter("events", "published"),
                     .batches = registry.AddCounter("batches", "published"),
                     .lost = registry.AddCounter("lost", "events"),
                     .gaps = registry.AddCounter("gaps", "shown"),
                     .replays = registry.AddCounter("replays", "answered"),
                     .states = registry.AddCounter("states", "answered"),
                     .refused = registry.AddCounter("refused", "requests"),
                     .foreign = registry.AddCounter("foreign", "messages"),
                     .given_up = registry.AddCounter("given_up", "answers")};
  options.list = [](kv_events::ListCursor*, std::vector<kv_events::BlockEvent>*) { return false; };
  EMS_ASSIGN_OR_RETURN(auto publisher, kv_events::EventPublisher::Start(options));
  EventCost cost;
  std::vector<double> on, off, ratios;
  cost.rounds = std::max<uint64_t>(1, settings.insertions / kPutsPerRound);
  for (uint64_t round = 0; round < cost.rounds; ++round) {
    // In turns, and which is first in turns, too.
    const Side first = round % 2 == 0 ? kOn : kOff;
    EMS_ASSIGN_OR_RETURN(const double one,
                         PutRound(store, first, round, value_bytes, &cost.refused));
    EMS_ASSIGN_OR_RETURN(const double other, PutRound(store, first == kOn ? kOff : kOn, round,
                                                      value_bytes, &cost.refused));
    on.push_back(first == kOn ? one : other);
    off.push_back(first == kOn ? other : one);
    ratios.push_back(on.back() / off.back());
  }
  publisher.reset();
  cost.on_us = Median(on);
  cost.off_us = Median(off);
  cost.ratio = Median(ratios);
  cost.events = static_cast<uint64_t>(options.metrics.events.value());
  cost.lost = events.lost();
  return cost;
}

}  // namespace ems::bench
