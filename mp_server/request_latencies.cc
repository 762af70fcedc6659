#include "mp_server/request_latencies.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <vector>

namespace ems::server {

using wire::Op;

namespace {

// What Puts from a client's own memory are called is said by the transport.
std::string_view NameOf(Op op) {
  switch (op) {
    case Op::kPut:
    case Op::kPutStaged:
      return "put";
    case Op::kMultiPut:
    case Op::kMultiPutStaged:
      return "multi_put";
    case Op::kGet:
      return "get";
    case Op::kMultiGet:
      return "multi_get";
    case Op::kGetRange:
      return "get_range";
    case Op::kMultiGetRange:
      return "multi_get_range";
    case Op::kExists:
      return "exists";
    case Op::kMultiExists:
      return "multi_exists";
    case Op::kRemove:
      return "remove";
    case Op::kMultiRemove:
      return "multi_remove";
    default:
      return "";
  }
}

constexpr std::array<std::string_view, 3> kTierNames = {"none", "dram", "ssd"};
constexpr std::array<std::string_view, 3> kTransportNames = {"tcp", "unix", "staged"};

}  // namespace

void RequestLatencies::Record(Op op, wire::ItemTier tier, bool local, Duration took) {
  if (NameOf(op).empty()) return;
  const bool staged = op == Op::kPutStaged || op == Op::kMultiPutStaged;
  const size_t transport = staged ? 2 : (local ? 1 : 0);
  latencies_.Record(
      (static_cast<size_t>(op) * kTiers + static_cast<size_t>(tier)) * kTransports + transport,
      took);
}

void RequestLatencies::AppendTo(std::string* text) const {
  std::vector<LatencySeries> series;
  for (size_t kind = 0; kind < latencies_.kinds(); ++kind) {
    Latencies one = latencies_.Of(kind);
    if (one.count == 0) continue;
    const auto op = static_cast<Op>(kind / kTransports / kTiers);
    series.push_back(
        {fmt::format("op=\"{}\",tier=\"{}\",transport=\"{}\"", NameOf(op),
                     kTierNames[kind / kTransports % kTiers], kTransportNames[kind % kTransports]),
         one});
  }
  AppendHistogram("ems_server_request_seconds",
                  "What requests took, from their header until their answer was with the kernel",
                  series, text);
}

}  // namespace ems::server
