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

}  // namespace
}  // namespace ems::emsctl
