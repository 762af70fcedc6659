#include "mp_server/forward/copy_calls.h"

#include "fabric/rpc/rpc_channel.h"
#include "mp_server/forward/results_sink.h"

namespace ems::server {

CopyResults CallForCopies(PeerCalls* peers, PeerCalls::Channels* channels, const CopyCall& call,
                          std::span<const CopyItem> items, std::span<const ObjectPin> values) {
  const Deadline deadline = call.deadline;
  std::vector<wire::ItemResult> results;
  const auto ask = [&](fabric::RpcChannel* channel) -> Status {
    fabric::RpcRequest& request = channel->NewRequest();
    request.header.op = call.op;
    request.header.flags = wire::kFlagCopy | wire::kFlagNoTouch | call.flags;
    request.header.deadline_ms = static_cast<uint32_t>(deadline.RemainingMs());
    request.header.namespace_id = call.ns.id.value();
    request.header.namespace_generation = call.ns.generation;
    request.header.view = call.view.packed();
    request.header.item_count = static_cast<uint16_t>(items.size());
    const auto append = [&](ConstBytes bytes) {
      request.head.insert(request.head.end(), bytes.begin(), bytes.end());
    };
    for (size_t i = 0; i < items.size(); ++i) {
      wire::ItemHead head{.slot = items[i].slot.value(),
                          .key_bytes = static_cast<uint16_t>(items[i].key.size())};
      if (!values.empty()) {
        head.idle_ms = items[i].idle_ms;
        head.value_bytes = values[i].value().size();
      }
      append(wire::RawBytes(head));
    }
    for (const CopyItem& item : items) append(AsBytes(item.key));
    std::vector<ConstBytes> parts;
    parts.reserve(values.size());
    for (const ObjectPin& value : values) {
      parts.push_back(value.value());
      request.values.emplace_back(&parts.back(), 1);
    }
    results.clear();
    ResultsSink sink(&results);
    channel->Start(&sink);
    Status done;
    fabric::RunAll(std::span(&channel, 1), deadline, std::span(&done, 1));
    EMS_RETURN_IF_ERROR(done);
    const wire::WireStatus whole = channel->answer().status;
    if (whole == wire::WireStatus::kOk && results.size() != items.size())
      return Error(StatusCode::kDataLoss, "{} results for {} items", results.size(), items.size());
    if (whole != wire::WireStatus::kOk)
      results.assign(items.size(), wire::ItemResult{.status = whole});
    return OkStatus();
  };
  EMS_RETURN_IF_ERROR(peers->Call(call.node, deadline, channels, ask));
  return results;
}

}  // namespace ems::server
