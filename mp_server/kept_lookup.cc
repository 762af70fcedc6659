#include "mp_server/kept_lookup.h"

#include <utility>

#include "mp_server/request_check.h"

namespace ems::server {

using fabric::Outcome;
using wire::WireStatus;

namespace {

constexpr Duration kPatience = std::chrono::seconds(1);  // a lookup ends by itself before

}  // namespace

Outcome KeptLookup::Ask(Forwarder* forwarder, const wire::FrameHeader& request,
                        std::string_view key, ConstBytes body, std::span<wire::ItemResult> results,
                        uint32_t replicas) {
  if (lookup_ == nullptr) {
    if (forwarder == nullptr || !forwarder->MayHaveAny()) return {results.front().status};
    std::vector<Lookup::Item> missing;
    wire::ItemReader items(request, body);
    for (uint32_t i = 0; i < results.size(); ++i) {
      wire::ItemReader::Item item{.head = {.slot = request.slot}, .key = key};
      if (IsMulti(request.op)) item = items.Next();
      const SlotId slot(item.head.slot);
      if (results[i].status == WireStatus::kMiss && forwarder->MayHave(slot, replicas))
        missing.push_back({.index = i, .slot = slot, .key = std::string(item.key)});
    }
    lookup_ = forwarder->Look(request.ns(), std::move(missing), waker_, replicas);
    if (lookup_ == nullptr) return {results.front().status};
  }
  if (!lookup_->done()) return {results.front().status, kWakeSoon, kPatience};
  for (const Lookup::Item& item : lookup_->items()) {
    if (!item.found) continue;
    wire::ItemResult& result = results[item.index];
    result.status = WireStatus::kOk;
    result.value_bytes = item.value_bytes;
    result.tier = wire::ItemTier::kDram;
  }
  lookup_.reset();
  return {results.front().status};
}

}  // namespace ems::server
