#include "tools/emsctl/namespace_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/bytes.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

TEST(NamespaceTextTest, ShowsQuotasAndWords) {
  NamespaceInfo info;
  info.name = "chat";
  info.ref = {NamespaceId(4), 2};
  info.dram_quota_bytes = 64 * kGiB;
  info.checksum = ChecksumPolicy::kSampled;
  EXPECT_THAT(NamespacesText({info}), HasSubstr("64 GiB"));
  EXPECT_THAT(NamespacesText({info}), HasSubstr("sampled"));
  EXPECT_THAT(NamespacesText({}), HasSubstr("emsctl namespace create"));
  EXPECT_EQ(NamespaceJson(info)["generation"], 2);
  EXPECT_EQ(NamespaceJson(info)["durability"], "dram");
}

TEST(NamespaceTextTest, ShowsWhatIsHeldBesideTheQuota) {
  NamespaceInfo info;
  info.name = "chat";
  info.dram_quota_bytes = 64 * kGiB;
  const CountsByNamespace counts = {
      {"chat", {.objects = 7, .value_bytes = 3 * kGiB, .evicted_objects = 12}}};
  const std::string text = NamespaceUsageText({info}, counts);
  EXPECT_THAT(text, ::testing::ContainsRegex("chat +7 +3 GiB +64 GiB +- +12 "));
  EXPECT_EQ(NamespaceUsageJson(info, counts)["dram_used_bytes"], 3 * kGiB);
  EXPECT_EQ(NamespaceUsageJson(info, {})["objects"], 0);
  EXPECT_EQ(NamespaceUsageJson(info, {})["name"], "chat");
}

}  // namespace
}  // namespace ems::emsctl
