// Listing keys through ems.h, against real daemons.
#include <csignal>
#include <set>
#include <string>

#include "tests/integrations/c/api_test.h"

namespace ems::capi {
namespace {

class ScanApiTest : public ApiTest {
 protected:
  // All keys that begin so; the last code, and its text, that is not EMS_OK.
  std::multiset<std::string> Keys(std::string_view prefix) {
    std::multiset<std::string> keys;
    ems_call_options options;
    EXPECT_EQ(ems_call_options_init(&options, sizeof(options)), EMS_OK);
    options.timeout_ms = 2000;
    ems_scan* scan = nullptr;
    EXPECT_EQ(ems_scan_begin(client_, prefix.data(), prefix.size(), &scan, &options), EMS_OK)
        << ems_last_error();
    ems_key_info info;
    ems_status code = EMS_OK;
    while ((code = ems_scan_next(scan, &info)) != EMS_NOT_FOUND) {
      if (code != EMS_OK) {
        failures_.push_back(ems_last_error());
        continue;
      }
      keys.emplace(static_cast<const char*>(info.key), info.key_size);
      EXPECT_EQ(info.size, 5u);
      EXPECT_EQ(info.tier, static_cast<uint32_t>(EMS_TIER_DRAM));
      EXPECT_LT(info.age_ms, 600'000u);
    }
    ems_scan_destroy(scan);
    return keys;
  }

  std::vector<std::string> failures_;
};

TEST_F(ScanApiTest, EachKeyOfThePrefixComes) {
  std::multiset<std::string> expected;
  for (int i = 0; i < 50; ++i) {
    expected.insert("scan/" + std::to_string(i));
    ASSERT_EQ(Put("scan/" + std::to_string(i), "value"), EMS_OK);
  }
  ASSERT_EQ(Put("other", "value"), EMS_OK);
  EXPECT_EQ(Keys("scan/"), expected);
  EXPECT_EQ(Keys("").size(), 51u);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(ScanApiTest, BadArgumentsAreSaid) {
  ems_scan* scan = nullptr;
  EXPECT_EQ(ems_scan_begin(client_, "p", 1, nullptr, nullptr), EMS_INVALID_ARGUMENT);
  EXPECT_EQ(ems_scan_begin(nullptr, "p", 1, &scan, nullptr), EMS_INVALID_ARGUMENT);
  EXPECT_EQ(ems_scan_begin(client_, nullptr, 1, &scan, nullptr), EMS_INVALID_ARGUMENT);
  const std::string long_prefix(513, 'p');
  EXPECT_EQ(ems_scan_begin(client_, long_prefix.data(), long_prefix.size(), &scan, nullptr),
            EMS_INVALID_ARGUMENT);
  EXPECT_EQ(scan, nullptr);
  ems_key_info info;
  EXPECT_EQ(ems_scan_next(nullptr, &info), EMS_INVALID_ARGUMENT);
  ASSERT_EQ(ems_scan_begin(client_, nullptr, 0, &scan, nullptr), EMS_OK);
  EXPECT_EQ(ems_scan_next(scan, nullptr), EMS_INVALID_ARGUMENT);
  ems_scan_destroy(scan);
  ems_scan_destroy(nullptr);
}

TEST_F(ScanApiTest, AServerThatDoesNotAnswerIsSaidOnceAndTheOthersAreListed) {
  for (int i = 0; i < 50; ++i) ASSERT_EQ(Put("left/" + std::to_string(i), "value"), EMS_OK);
  cluster_->server(0).Signal(SIGSTOP);
  const auto keys = Keys("left/");
  cluster_->server(0).Signal(SIGCONT);
  EXPECT_FALSE(keys.empty());
  EXPECT_LT(keys.size(), 50u);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_NE(failures_[0].find("keys of server-0 are missing"), std::string::npos) << failures_[0];
}

}  // namespace
}  // namespace ems::capi
