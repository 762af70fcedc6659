#include "integrations/c/internal/kv_registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/integrations/c/internal/two_layers.h"

namespace ems::capi {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectInvalid(const Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr(text));
}

class KvRegistrationTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = TwoLayers::kBytes;
  TwoLayers kv_;
  std::array<ems_kv_tensor, 4>& tensors_ = kv_.tensors;
};

TEST_F(KvRegistrationTest, TensorsBecomeLayersInTheirOrder) {
  const auto layout = ToKvLayout(tensors_.data(), tensors_.size());
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->layers(), 2u);
  EXPECT_EQ(layout->groups(), 1u);
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
  ExpectInvalid(ToKvLayout(tensors_.data(), SIZE_MAX).status(), "1 to 4096");
}

TEST_F(KvRegistrationTest, EachLayerIsOfItsGroup) {
  const auto layout = ToKvLayout(tensors_.data(), 4, std::array<uint32_t, 2>{1, 0});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->groups(), 2u);
  EXPECT_EQ(layout->group_of(0), 1u);
  EXPECT_EQ(layout->group_of(1), 0u);
  ExpectInvalid(ToKvLayout(tensors_.data(), 4, std::array<uint32_t, 3>{0, 0, 0}).status(),
                "layer_count is 3: 2 to 2");
  ExpectInvalid(ToKvLayout(tensors_.data(), 4, std::array<uint32_t, 2>{0, 2}).status(), "group 2");
  ExpectInvalid(ToKvLayout(tensors_.data(), 4, std::array<uint32_t, 2>{1, 1}).status(), "group 0");
}

TEST_F(KvRegistrationTest, DefaultsAreThoseOfPagedCache) {
  const context::PagedOptions defaults;
  const Result<KvChoice> choice = ToKvChoice(nullptr);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->paged.policy, defaults.policy);
  EXPECT_EQ(choice->paged.shared_by_tp, defaults.shared_by_tp);
  EXPECT_EQ(choice->paged.tp_size, defaults.tp_size);
  EXPECT_EQ(choice->paged.layer_read_bytes, defaults.layer_read_bytes);
  EXPECT_TRUE(choice->layer_groups.empty());
}

TEST_F(KvRegistrationTest, OptionsCarryOverAndAreBounded) {
  const std::array<uint32_t, 2> groups{0, 1};
  ems_kv_options c = DefaultKvOptions();
  c.layer_groups = groups.data();
  c.layer_count = 2;
  c.save_policy = EMS_SAVE_FINAL_RESPONSE;
  c.shared_by_tp = 1;
  c.tp_rank = 3;
  c.tp_size = 4;
  c.layer_read_bytes = 4096;
  const Result<KvChoice> choice = ToKvChoice(&c);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->paged.policy, context::SavePolicy::kFinalResponse);
  EXPECT_TRUE(choice->paged.shared_by_tp);
  EXPECT_EQ(choice->paged.tp_rank, 3u);
  EXPECT_EQ(choice->paged.tp_size, 4u);
  EXPECT_EQ(choice->paged.layer_read_bytes, 4096u);
  EXPECT_THAT(choice->layer_groups, ElementsAre(0, 1));

  const auto refuses = [&](auto ems_kv_options::*field, auto value, const std::string& text) {
    ems_kv_options bad = c;
    bad.*field = value;
    ExpectInvalid(ToKvChoice(&bad).status(), text);
  };
  refuses(&ems_kv_options::save_policy, 3u, "save_policy is 3");
  refuses(&ems_kv_options::shared_by_tp, 2u, "shared_by_tp is 2");
  refuses(&ems_kv_options::tp_rank, 4u, "tp_rank is 4");
  refuses(&ems_kv_options::tp_size, 0u, "tp_size is 0");
  refuses(&ems_kv_options::layer_read_bytes, uint64_t{0}, "layer_read_bytes is 0");
  refuses(&ems_kv_options::layer_read_bytes, (uint64_t{1} << 40) + 1, "layer_read_bytes is");
  refuses(&ems_kv_options::layer_count, size_t{0}, "layer_count is 0");
  refuses(&ems_kv_options::layer_count, SIZE_MAX, "1 to 4096");
  refuses(&ems_kv_options::layer_groups, static_cast<const uint32_t*>(nullptr), "layer_groups");
  refuses(&ems_kv_options::size, sizeof(ems_kv_options) - 8, "ems_kv_options of");
  refuses(&ems_kv_options::size, size_t{0}, "ems_kv_options of 0 bytes");
}

}  // namespace
}  // namespace ems::capi
