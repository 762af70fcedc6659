// What must hold: each namespace and path counts apart, what is shown is what was added, and a
// count that is too large for a number does no harm.
#include "mp_server/store/lookup_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::server {
namespace {

using ::testing::HasSubstr;

TEST(LookupCountersTest, NamespacesAndPathsCountApartAndAreSummed) {
  MetricsRegistry registry;
  const LookupCounters counters(&registry);
  const NamespaceLookups& kv = counters.For("kv");
  EXPECT_EQ(&counters.For("kv"), &kv);
  EXPECT_EQ(kv.name(), "kv");
  kv.Add(LookupPath::kSocket, {.hits = 1, .misses = 2, .bytes = 30, .found = 4, .absent = 5});
  kv.Add(LookupPath::kOneSided, {.hits = 100, .misses = 200});
  counters.For("models").Add(LookupPath::kOneSided, {.hits = 1000});
  EXPECT_EQ(kv.Of(LookupPath::kSocket).misses, 2u);
  EXPECT_EQ(kv.Of(LookupPath::kOneSided).misses, 200u);
  EXPECT_EQ(counters.Total(LookupPath::kOneSided).hits, 1100u);
  EXPECT_EQ(counters.Total(LookupPath::kSocket).absent, 5u);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_server_lookups_total{namespace=\"kv\",op=\"get\","
                              "path=\"one_sided\",result=\"hit\"} 100\n"));
  EXPECT_THAT(text, HasSubstr("ems_server_lookups_total{namespace=\"kv\",op=\"exists\","
                              "path=\"socket\",result=\"miss\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("ems_server_lookup_bytes_total{namespace=\"kv\",path=\"socket\"} "
                              "30\n"));
}

TEST(LookupCountersTest, ASumThatNoNumberHoldsStaysTheLargestOne) {
  MetricsRegistry registry;
  const LookupCounters counters(&registry);
  for (int i = 0; i < 4; ++i)
    counters.For("kv").Add(LookupPath::kOneSided, {.hits = UINT64_MAX, .misses = 1});
  EXPECT_EQ(counters.For("kv").Of(LookupPath::kOneSided).hits, uint64_t{1} << 53);
  EXPECT_EQ(counters.For("kv").Of(LookupPath::kOneSided).misses, 4u);
  for (int i = 0; i < 4; ++i)
    counters.For("models").Add(LookupPath::kOneSided, {.hits = UINT64_MAX});
  EXPECT_EQ(counters.Total(LookupPath::kOneSided).hits, uint64_t{2} << 53);
}

}  // namespace
}  // namespace ems::server
