#include "mp_server/store/kept_scan.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "mp_server/store/namespace_store.h"

namespace ems::server {
namespace {

constexpr KeptObjects::Age kYoungest{INT64_MAX, UINT64_MAX};

uint32_t Milliseconds(int64_t ns) {
  return static_cast<uint32_t>(std::clamp<int64_t>(ns / 1'000'000, 0, wire::kUnknownMs - 1));
}

// namespace, then when the last key of it was used, and its generation.
wire::ScanCursor CursorOf(NamespaceId ns, const KeptObjects::Age& age) {
  return {ns.value(), static_cast<uint64_t>(age.first), age.second};
}

}  // namespace

wire::KeptPage ScanKept(const ObjectStore& dram, SlotId slot, const wire::ScanKeptBody& body) {
  wire::KeptPage page;
  MovedSlots* const moved = dram.moved();
  const Era era{body.era.history, body.era.since};
  if (moved == nullptr || !moved->Keeps(slot, era)) return page;
  if (const auto before = moved->Before(slot, era)) {
    page.head.node = before->node.value();
    page.head.since = before->era.since;
  }
  const bool begins = body.cursor == wire::kScanBegin;
  std::vector<std::shared_ptr<NamespaceStore>> stores = dram.Stores();
  std::erase_if(stores,
                [&](const auto& store) { return store->ref().id.value() < body.cursor[0]; });
  std::ranges::sort(stores, {}, [](const auto& store) { return store->ref().id; });
  for (const auto& store : stores) {
    const NamespaceRef ns = store->ref();
    const KeptObjects::Age below =
        begins || ns.id.value() != body.cursor[0]
            ? kYoungest
            : KeptObjects::Age{static_cast<int64_t>(body.cursor[1]), body.cursor[2]};
    std::vector<KeptObjects::Listed> listed;
    const bool ended = store->objects().kept().ListSlot(
        slot, below, std::clamp<size_t>(body.items_max, 1, wire::kScanItemsMax),
        std::min<uint64_t>(body.bytes_max, wire::kScanAnswerBytesMax / 2), &listed);
    if (listed.empty()) continue;
    page.head.namespace_id = ns.id.value();
    page.head.namespace_generation = ns.generation;
    const int64_t now = store->clock().Now().time_since_epoch().count();
    if (!ended || store != stores.back()) page.keys.next = CursorOf(ns.id, listed.back().age);
    for (KeptObjects::Listed& one : listed) {
      page.keys.keys.push_back({.key = std::move(one.key),
                                .value_bytes = one.value_bytes,
                                .tier = wire::ItemTier::kDram,
                                .idle_ms = Milliseconds(now - one.age.first)});
    }
    break;
  }
  return page;
}

}  // namespace ems::server
