#pragma once
// What the tests of paged KV through ems.h share: an engine with two layers of K and V in pages, a
// context made for them, and the keys of a prompt.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "tests/integrations/c/api_test.h"

namespace ems::capi {

inline constexpr size_t kBlocks = 3;   // of the prompt
inline constexpr size_t kTokens = 16;  // of each, and of a page
inline constexpr size_t kPages = 8;
inline constexpr size_t kTokenBytes = 8;  // of one tensor
inline constexpr size_t kTensorBytes = kPages * kTokens * kTokenBytes;

// Threading: one thread.
class KvTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      memory_[i].resize(kTensorBytes);
      tensors_[i] = {.data = memory_[i].data(),
                     .bytes = kTensorBytes,
                     .layer = static_cast<uint32_t>(i / 2),
                     .dtype = EMS_KV_FLOAT16,
                     .order = EMS_KV_TOKENS_FIRST,
                     .block_tokens = kTokens,
                     .blocks = kPages,
                     .heads = 2,
                     .head_size = 2,
                     .block_stride = 0,
                     .token_stride = 0,
                     .head_stride = 0};
    }
    context_ = MakeContext(client_);
    ASSERT_NE(context_, nullptr) << ems_last_error();
    ASSERT_EQ(ems_kv_register(context_, tensors_.data(), tensors_.size(), &kv_), EMS_OK)
        << ems_last_error();
    std::array<int32_t, kBlocks * kTokens> tokens;
    std::iota(tokens.begin(), tokens.end(), 5);
    size_t count = 0;
    ASSERT_EQ(ems_context_hash_tokens(context_, tokens.data(), tokens.size(), nullptr, keys_.data(),
                                      kBlocks, &count),
              EMS_OK);
  }
  void TearDown() override {
    ems_kv_unregister(kv_);
    ems_context_destroy(context_);
    ApiTest::TearDown();
  }
  // A context of its own for each test, for the tensors and the options that they are registered
  // with.
  ems_context* MakeContext(ems_client* client, const ems_kv_options* options = nullptr) {
    std::array<char, 200> layout;
    size_t length = 0;
    EXPECT_EQ(ems_kv_fingerprint_with(tensors_.data(), tensors_.size(), options, layout.data(),
                                      layout.size(), &length),
              EMS_OK)
        << ems_last_error();
    EXPECT_EQ(std::string(layout.data()).size(), length);
    ems_context_options made_with;
    EXPECT_EQ(ems_context_options_init(&made_with, sizeof(made_with)), EMS_OK);
    made_with.model = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    made_with.dtype = "f16";
    made_with.kv_layout = layout.data();
    made_with.block_tokens = kTokens;
    ems_context* context = nullptr;
    EXPECT_EQ(ems_context_create(client, &made_with, &context), EMS_OK) << ems_last_error();
    return context;
  }
  // Slots of the prompt's tokens when its blocks lie in these pages.
  static std::vector<int64_t> Slots(const std::array<size_t, kBlocks>& pages) {
    std::vector<int64_t> slots;
    for (const size_t page : pages) {
      for (size_t t = 0; t < kTokens; ++t)
        slots.push_back(static_cast<int64_t>(page * kTokens + t));
    }
    return slots;
  }
  // What tensor `i` holds of block `b` in `page`.
  std::string Part(size_t i, size_t page) const {
    return memory_[i].substr(page * kTokens * kTokenBytes, kTokens * kTokenBytes);
  }
  void Fill(size_t page, char with) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_[i].replace(
          page * kTokens * kTokenBytes, kTokens * kTokenBytes,
          std::string(kTokens * kTokenBytes, static_cast<char>(static_cast<size_t>(with) + i * 8)));
    }
  }

  std::array<std::string, 4> memory_;  // K, V of two layers; does not move
  std::array<ems_kv_tensor, 4> tensors_{};
  ems_context* context_ = nullptr;
  ems_kv* kv_ = nullptr;
  std::array<char, kBlocks * 32> keys_{};
  std::array<ems_status, kBlocks> codes_{};
};

}  // namespace ems::capi
