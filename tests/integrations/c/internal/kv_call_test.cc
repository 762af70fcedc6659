// Arguments; what the calls do is tested by tests/integrations/c/kv_api_test.cc.
#include "integrations/c/internal/kv_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "integrations/c/internal/kv_registration.h"
#include "tests/integrations/c/internal/two_layers.h"

namespace ems::capi {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

void ExpectInvalid(const Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr(text));
}

class KvCallTest : public ::testing::Test {
 protected:
  static constexpr size_t kTokens = 128;  // of a block of the context

  void SetUp() override {
    auto hasher = context::BlockHasher::Make(context::KeyDomain());
    auto layout = ToKvLayout(kv_.tensors.data(), kv_.tensors.size());
    ASSERT_TRUE(hasher.ok() && layout.ok()) << layout.status();
    core_ = std::make_shared<KvCore>(
        std::make_shared<ContextCore>(nullptr, context::ContextCacheOptions{}, *hasher, "x"),
        *std::move(layout), context::PagedOptions());
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i] = static_cast<int64_t>(i);
  }
  Status Refused(KvKind kind, const KvArguments& arguments) {
    return KvCall::Make(core_, kind, arguments).status();
  }

  TwoLayers kv_;
  std::shared_ptr<KvCore> core_;
  const std::string keys_ = std::string(64, 'k');
  std::array<int64_t, 2 * kTokens> slots_{};
  std::array<ems_status, 2> codes_{};
};

TEST_F(KvCallTest, SlotsAreCheckedBeforeAnythingRuns) {
  ems_kv_slots group{slots_.data(), slots_.size(), nullptr};
  KvArguments arguments{.blocks = {keys_.data(), 2, &group, 1}, .codes = codes_.data()};
  EXPECT_EQ(Refused(KvKind::kLoad, arguments), OkStatus());
  slots_[200] = 256;
  EXPECT_EQ(Refused(KvKind::kLoad, arguments).code(), StatusCode::kOutOfRange);
  EXPECT_THAT(codes_, Each(EMS_OUT_OF_RANGE));
  slots_[200] = -1;
  EXPECT_EQ(Refused(KvKind::kSave, arguments).code(), StatusCode::kOutOfRange);
  slots_[200] = 3;
  EXPECT_EQ(Refused(KvKind::kSave, arguments), OkStatus()) << "reading a slot twice is fine";
  EXPECT_EQ(Refused(KvKind::kLoad, arguments).code(), StatusCode::kInvalidArgument);
  group.slot_count = 255;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "slot_count is 255: 256 to 256");
  group.slots = nullptr;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "slots is NULL");
  arguments.phase = 3;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "phase is 3");
  arguments.blocks.group_count = 2;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "group_count is 2: 1 to 1");
  arguments.blocks.groups = nullptr;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "groups is NULL");
  arguments.blocks.count = 0;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "count is 0");
  arguments.blocks.count = SIZE_MAX;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "1 to 65536");
  arguments.blocks.keys = nullptr;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "keys is NULL");
}

TEST_F(KvCallTest, TokensSayHowManySlotsAreABlocks) {
  std::array<uint32_t, 2> tokens{100, 28};
  ems_kv_slots group{slots_.data(), 128, tokens.data()};
  const KvArguments arguments{.blocks = {keys_.data(), 2, &group, 1}, .codes = codes_.data()};
  EXPECT_EQ(Refused(KvKind::kLoad, arguments), OkStatus());
  tokens[1] = 29;
  ExpectInvalid(Refused(KvKind::kLoad, arguments), "slot_count is 128: 129 to 129");
  EXPECT_THAT(codes_, Each(EMS_INVALID_ARGUMENT));
  tokens = {UINT32_MAX, UINT32_MAX};
  ExpectInvalid(Refused(KvKind::kLoad, arguments), "slot_count is 128");
  tokens = {128, 0};
  ExpectInvalid(Refused(KvKind::kLoad, arguments), "block 1");  // without any token
}

}  // namespace
}  // namespace ems::capi
