#pragma once
// The part of a namespace's DRAM quota that one server holds: what the server says of it with each
// heartbeat, and what the controller answers (mp_controller/quota_parts.h).
//
// Bound: kQuotaPartsMax parts a heartbeat, those of the namespaces with the lowest ids; the others
// are split as slots are.
#include <cstdint>

#include "common/clock.h"
#include "common/ids.h"

namespace ems {
namespace v1 {
class QuotaPart;
}

inline constexpr size_t kQuotaPartsMax = 64;

struct QuotaPart {
  NamespaceRef ref;
  uint64_t quota_bytes = 0;  // of the namespace, over all servers; a part of another quota is none
  uint64_t part_bytes = 0;   // of it, this server's
  // What follows, servers say.
  uint64_t used_bytes = 0;
  // How long the coldest object has not been used; zero: there is none. The eviction age, where the
  // part is full, as the coldest goes first.
  Duration coldest_age{};
  friend bool operator==(const QuotaPart&, const QuotaPart&) = default;
};

void ToProto(const QuotaPart& part, v1::QuotaPart* proto);
QuotaPart FromProto(const v1::QuotaPart& proto);

}  // namespace ems
