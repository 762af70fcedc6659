// Arguments; what the calls do is tested by tests/integrations/c/kv_api_test.cc.
#include "integrations/c/internal/kv_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

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
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i] = {.data = memory_.data() + i * kBytes,
                     .bytes = kBytes,
                     .layer = static_cast<uint32_t>(i / 2),
                     .dtype = EMS_KV_FLOAT16,
                     .order = EMS_KV_TOKENS_FIRST,
                     .block_tokens = 16,
                     .blocks = 16,
                     .heads = 1,
                     .head_size = 2,
                     .block_stride = 0,
                     .token_stride = 0,
                     .head_stride = 0};
    }
    auto hasher = context::BlockHasher::Make(context::KeyDomain());
    auto layout = ToKvLayout(tensors_.data(), tensors_.size());
    ASSERT_TRUE(hasher.ok() && layout.ok()) << layout.status();
    core_ = std::make_shared<KvCore>(
        std::make_shared<ContextCore>(nullptr, context::ContextCacheOptions{}, *hasher, "x"),
        *std::move(layout));
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i] = static_cast<int64_t>(i);
  }
  Status Refused(KvKind kind, const KvArguments& arguments) {
    return KvCall::Make(core_, kind, arguments).status();
  }

  static constexpr size_t kBytes = size_t{16} * 16 * 4;
  std::array<char, 4 * kBytes> memory_{};
  std::array<ems_kv_tensor, 4> tensors_{};  // two layers of K and V
  std::shared_ptr<KvCore> core_;
  const std::string keys_ = std::string(64, 'k');
  std::array<int64_t, 2 * kTokens> slots_{};
  std::array<ems_status, 2> codes_{};
};

TEST_F(KvCallTest, TensorsBecomeLayersInTheirOrder) {
  const auto layout = ToKvLayout(tensors_.data(), tensors_.size());
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->layers(), 2u);
  EXPECT_EQ(layout->BlockBytes(0, 1), 4u * 4u);
  tensors_[1].layer = 2;
  ExpectInvalid(ToKvLayout(tensors_.data(), 4).status(), "tensor 1: layer 2 after 1 layers");
  tensors_[1].layer = 1;
  tensors_[2].layer = 0;
  ExpectInvalid(ToKvLayout(tensors_.data(), 4).status(), "tensor 2: layer 0 after 2 layers");
  tensors_[0].dtype = 7;
  ExpectInvalid(ToKvLayout(tensors_.data(), 4).status(), "tensor 0: dtype is 7");
  tensors_[0].dtype = 0;
  tensors_[0].order = 2;
  ExpectInvalid(ToKvLayout(tensors_.data(), 4).status(), "tensor 0: order is 2");
  tensors_[0].data = nullptr;
  ExpectInvalid(ToKvLayout(tensors_.data(), 4).status(), "tensor 0: data is NULL");
  ExpectInvalid(ToKvLayout(nullptr, 4).status(), "tensors is NULL");
  ExpectInvalid(ToKvLayout(tensors_.data(), 0).status(), "count is 0");
}

TEST_F(KvCallTest, SlotsAreCheckedBeforeAnythingRuns) {
  KvArguments arguments{keys_.data(), 2, slots_.data(), slots_.size(), nullptr, codes_.data()};
  EXPECT_EQ(Refused(KvKind::kLoad, arguments), OkStatus());
  slots_[200] = 256;
  EXPECT_EQ(Refused(KvKind::kLoad, arguments).code(), StatusCode::kOutOfRange);
  EXPECT_THAT(codes_, Each(EMS_OUT_OF_RANGE));
  slots_[200] = -1;
  EXPECT_EQ(Refused(KvKind::kSave, arguments).code(), StatusCode::kOutOfRange);
  slots_[200] = 3;
  EXPECT_EQ(Refused(KvKind::kSave, arguments), OkStatus()) << "reading a slot twice is fine";
  EXPECT_EQ(Refused(KvKind::kLoad, arguments).code(), StatusCode::kInvalidArgument);
  arguments.slot_count = 255;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "slot_count is 255: 256 to 256");
  arguments.slots = nullptr;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "slots is NULL");
  arguments.count = 0;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "count is 0");
  arguments.keys = nullptr;
  ExpectInvalid(Refused(KvKind::kSave, arguments), "keys is NULL");
}

}  // namespace
}  // namespace ems::capi
