#include "cluster/quota_part.h"

#include <gtest/gtest.h>

#include "cluster/node_usage.h"
#include "proto/controller.pb.h"

namespace ems {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

TEST(QuotaPartTest, ComesBackFromTheWireAsItWas) {
  const QuotaPart part{.ref = {NamespaceId(3), 9},
                       .quota_bytes = 100,
                       .part_bytes = 40,
                       .used_bytes = 39,
                       .coldest_age = seconds(7)};
  v1::QuotaPart proto;
  ToProto(part, &proto);
  EXPECT_EQ(FromProto(proto), part);
}

// Zero says that there is no object.
TEST(QuotaPartTest, AYoungObjectIsNotNone) {
  v1::QuotaPart proto;
  ToProto(QuotaPart{.ref = {}, .coldest_age = Duration(1)}, &proto);
  EXPECT_EQ(FromProto(proto).coldest_age, microseconds(1));
}

TEST(QuotaPartTest, AnAgeThatCannotBeIsTakenAsALongOne) {
  v1::QuotaPart proto;
  proto.set_coldest_age_us(UINT64_MAX);
  EXPECT_GT(FromProto(proto).coldest_age, seconds(1'000'000));
}

TEST(QuotaPartTest, AServerReportsABoundedNumber) {
  v1::NodeUsage proto;
  for (size_t i = 0; i < kQuotaPartsMax + 1; ++i)
    ToProto(QuotaPart{.ref = {}, .part_bytes = i}, proto.add_quota_parts());
  const NodeUsage usage = FromProto(proto);
  ASSERT_EQ(usage.quota_parts.size(), kQuotaPartsMax);
  EXPECT_EQ(usage.quota_parts[5].part_bytes, 5U);
}

}  // namespace
}  // namespace ems
