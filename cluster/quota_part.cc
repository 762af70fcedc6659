#include "cluster/quota_part.h"

#include <algorithm>
#include <chrono>

#include "proto/controller.pb.h"

namespace ems {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kAgeUsMax = uint64_t{1} << 50;  // 35 years: fits a Duration

}  // namespace

void ToProto(const QuotaPart& part, v1::QuotaPart* proto) {
  proto->set_namespace_id(part.ref.id.value());
  proto->set_generation(part.ref.generation);
  proto->set_quota_bytes(part.quota_bytes);
  proto->set_part_bytes(part.part_bytes);
  proto->set_used_bytes(part.used_bytes);
  proto->set_coldest_age_us(static_cast<uint64_t>(
      std::chrono::ceil<microseconds>(std::max(part.coldest_age, Duration::zero())).count()));
}

QuotaPart FromProto(const v1::QuotaPart& proto) {
  const auto age_us = static_cast<int64_t>(std::min(proto.coldest_age_us(), kAgeUsMax));
  return {.ref = {NamespaceId(proto.namespace_id()), proto.generation()},
          .quota_bytes = proto.quota_bytes(),
          .part_bytes = proto.part_bytes(),
          .used_bytes = proto.used_bytes(),
          .coldest_age = microseconds(age_us)};
}

}  // namespace ems
