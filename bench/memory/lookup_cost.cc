#include "bench/memory/lookup_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/metrics.h"
#include "mp_server/data_service.h"

namespace ems::bench {
namespace {

constexpr uint16_t kKeys = 4096;
constexpr uint64_t kValueBytes = 64;
constexpr Duration kReadyTimeout = std::chrono::seconds(30);
constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr ViewVersion kView(1, 1);

std::string KeyOf(uint16_t number) { return fmt::format("a-key-as-long-as-a-hash-{:08}", number); }

// The body of a MultiExists of all keys.
std::string MakeBody() {
  std::string heads, keys;
  for (uint16_t i = 0; i < kKeys; ++i) {
    const std::string key = KeyOf(i);
    wire::ItemHead head;
    head.slot = i;
    head.key_bytes = static_cast<uint16_t>(key.size());
    heads += AsText(wire::RawBytes(head));
    keys += key;
  }
  return heads + keys;
}

// This server owns all slots.
Result<std::shared_ptr<const DhtView>> MakeView(NodeId self) {
  SlotTable slots;
  for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), self);
  NodeInfo node;
  node.id = self;
  return DhtView::Make(kView, {node}, slots, false);
}

Status Fill(server::ObjectStore* store) {
  NamespaceTable table;
  table.by_id[kNs.id].ref = kNs;
  store->SetNamespaces(table, 1.0);
  store->SetOwnedSlots(std::bitset<kSlotCount>().set());
  for (uint16_t i = 0; i < kKeys; ++i) {
    EMS_ASSIGN_OR_RETURN(server::Reservation room,
                         store->Reserve(kNs, SlotId(i), KeyOf(i), kValueBytes));
    bool stored = false;
    EMS_RETURN_IF_ERROR(server::ObjectStore::Publish(std::move(room), i, {}, &stored));
  }
  return OkStatus();
}

}  // namespace

Result<LookupCost> MeasureLookupCost(const MemorySettings& settings) {
  server::SegmentPool pool(PoolOptions(settings));
  EMS_RETURN_IF_ERROR(pool.WaitReady(settings.segment_bytes, Deadline::After(kReadyTimeout)));
  server::ObjectStore store({.pool = &pool});
  EMS_RETURN_IF_ERROR(Fill(&store));
  server::TieredStore tiered(&store, nullptr);
  server::Ownership ownership(&Clock::System());
  ownership.SetSelf(NodeId(1));
  EMS_ASSIGN_OR_RETURN(const auto view, MakeView(NodeId(1)));
  (void)ownership.Install(*view);
  ownership.RenewLease(Clock::System().Now() + std::chrono::hours(24));
  MetricsRegistry registry;
  const server::ServerMetrics metrics(&registry);
  server::DataService service(&tiered, &ownership, &metrics, 1, kMiB, [] { return std::string(); });
  const std::unique_ptr<fabric::Session> session = service.NewSession();

  const std::string body = MakeBody();
  wire::FrameHeader header;
  header.op = wire::Op::kMultiExists;
  header.item_count = kKeys;
  header.namespace_id = kNs.id.value();
  header.namespace_generation = kNs.generation;
  header.view = kView.packed();
  LookupCost cost;
  cost.keys = kKeys;
  cost.frames = std::max<uint64_t>(20, settings.insertions / 500);
  std::vector<double> ns;
  fabric::Answer answer;
  for (uint64_t frame = 0; frame < cost.frames; ++frame) {
    answer.Clear();
    const TimePoint start = Clock::System().Now();
    fabric::Outcome outcome;
    do {
      outcome = session->Handle(header, {}, AsBytes(body), &answer);
    } while (outcome.again);
    session->Sent();
    const std::chrono::duration<double, std::nano> took = Clock::System().Now() - start;
    const auto last =
        wire::ReadRaw<wire::ItemResult>(ConstBytes(answer.body).last(sizeof(wire::ItemResult)));
    EMS_CHECK(outcome.status == wire::WireStatus::kOk && last.value_bytes == kValueBytes,
              "a look-up misses what was put");
    ns.push_back(took.count() / kKeys);
  }
  std::ranges::sort(ns);
  cost.ns = ns[ns.size() / 2];
  cost.ns_min = ns.front();
  return cost;
}

}  // namespace ems::bench
