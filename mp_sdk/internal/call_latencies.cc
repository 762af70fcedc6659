#include "mp_sdk/internal/call_latencies.h"

#include <array>
#include <string>
#include <utility>

namespace ems::internal {
namespace {

using wire::Op;

constexpr std::array<const char*, 4> kOpNames = {"get", "put", "exists", "remove"};

size_t IndexOf(Op op) {
  switch (op) {
    case Op::kPut:
      return 1;
    case Op::kExists:
      return 2;
    case Op::kRemove:
      return 3;
    default:
      return 0;
  }
}

}  // namespace

void CallLatencies::Record(Op op, size_t keys, CallPath path, Duration took) {
  const size_t many = keys > 1 ? 1 : 0;
  latencies_.Record((IndexOf(op) * kPaths + static_cast<size_t>(path)) * 2 + many, took);
}

std::vector<CallLatency> CallLatencies::Calls() const {
  std::vector<CallLatency> calls;
  for (size_t kind = 0; kind < latencies_.kinds(); ++kind) {
    Latencies one = latencies_.Of(kind);
    if (one.count == 0) continue;
    const bool many = kind % 2 != 0;
    const auto path = static_cast<CallPath>(kind / 2 % kPaths);
    calls.push_back({.op = std::string(many ? "multi_" : "") + kOpNames[kind / 2 / kPaths],
                     .path = path == CallPath::kOneSided ? "one_sided" : "socket",
                     .latencies = std::move(one)});
  }
  return calls;
}

}  // namespace ems::internal
