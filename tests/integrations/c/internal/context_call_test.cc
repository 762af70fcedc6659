// Arguments; what the calls do is tested by tests/integrations/c/context_api_test.cc.
#include "integrations/c/internal/context_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace ems::capi {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class ContextCallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto hasher = context::BlockHasher::Make(context::KeyDomain());
    ASSERT_TRUE(hasher.ok()) << hasher.status();
    core_ = std::make_shared<ContextCore>(nullptr, context::ContextCacheOptions{}, *hasher, "x");
  }
  void ExpectRefused(ContextKind kind, const ContextArguments& arguments, const std::string& text) {
    const auto call = ContextCall::Make(core_, kind, arguments);
    ASSERT_FALSE(call.ok());
    EXPECT_EQ(call.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(Message(call.status())), HasSubstr(text));
  }

  std::shared_ptr<ContextCore> core_;
  const std::string keys_ = std::string(64, 'k');
  std::array<char, 8> memory_{};
  ems_iov piece_{memory_.data(), memory_.size()};
  std::array<ems_pieces, 2> blocks_{{{&piece_, 1}, {&piece_, 1}}};
  std::array<ems_status, 2> codes_{};
};

TEST_F(ContextCallTest, TheDeadlineIsTheCallersOrFollowsFromTheBytes) {
  ems_call_options options = DefaultCallOptions();
  const ContextArguments arguments{keys_.data(), 2, blocks_.data(), &options, nullptr};
  auto call = ContextCall::Make(core_, ContextKind::kLoad, arguments);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_GE((*call)->timeout(), std::chrono::seconds(1));
  options.timeout_ms = 20;
  call = ContextCall::Make(core_, ContextKind::kSave, arguments);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ((*call)->timeout(), std::chrono::milliseconds(20));
}

TEST_F(ContextCallTest, BadArgumentsAreNamedAndToldInTheCodes) {
  blocks_[1].count = 0;
  ExpectRefused(ContextKind::kLoad, {keys_.data(), 2, blocks_.data(), nullptr, codes_.data()},
                "block 1: memory has 0 pieces");
  EXPECT_THAT(codes_, Each(EMS_INVALID_ARGUMENT));
  ExpectRefused(ContextKind::kSave, {keys_.data(), 2, nullptr, nullptr, nullptr}, "blocks is NULL");
  ExpectRefused(ContextKind::kLookup, {nullptr, 2, nullptr, nullptr, nullptr}, "keys is NULL");
  ExpectRefused(ContextKind::kLookup, {keys_.data(), 0, nullptr, nullptr, nullptr}, "count is 0");
}

}  // namespace
}  // namespace ems::capi
