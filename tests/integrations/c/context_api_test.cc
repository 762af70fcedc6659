// Prefix caching through ems.h, against real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <numeric>
#include <vector>

#include "tests/integrations/c/api_test.h"

namespace ems::capi {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kContextBlocks = 4;
constexpr size_t kBlockTokens = 16;
constexpr size_t kBlockBytes = 3000;

class ContextApiTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    context_ = Make("salt of " +
                    std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    ASSERT_NE(context_, nullptr) << ems_last_error();
    std::iota(tokens_.begin(), tokens_.end(), 1000);
    size_t count = 0;
    ASSERT_EQ(ems_context_hash_tokens(context_, tokens_.data(), tokens_.size(), nullptr,
                                      keys_.data(), kContextBlocks, &count),
              EMS_OK)
        << ems_last_error();
    ASSERT_EQ(count, kContextBlocks);
    // Each block in two pieces, as K and V lie apart.
    for (size_t i = 0; i < kContextBlocks; ++i) {
      bytes_[i].assign(kBlockBytes, static_cast<char>('a' + i));
      iov_[2 * i] = {bytes_[i].data(), 1000};
      iov_[2 * i + 1] = {bytes_[i].data() + 1000, kBlockBytes - 1000};
      blocks_[i] = {&iov_[2 * i], 2};
    }
  }
  void TearDown() override {
    ems_context_destroy(context_);
    ApiTest::TearDown();
  }
  ems_context* Make(const std::string& salt, uint32_t hash_kind = EMS_HASH_SHA256) {
    ems_context_options options;
    EXPECT_EQ(ems_context_options_init(&options, sizeof(options)), EMS_OK);
    options.model = "fingerprint";
    options.dtype = "bf16";
    options.kv_layout = "NHD/2x8x128";
    options.cache_salt = salt.c_str();
    options.block_tokens = kBlockTokens;
    options.hash_kind = hash_kind;
    ems_context* made = nullptr;
    EXPECT_EQ(ems_context_create(client_, &options, &made), EMS_OK) << ems_last_error();
    return made;
  }
  void Blank() {
    for (std::string& bytes : bytes_) bytes.assign(kBlockBytes, '?');
  }

  ems_context* context_ = nullptr;
  std::array<int32_t, kContextBlocks * kBlockTokens + 5> tokens_{};  // the last block is not full
  std::array<char, kContextBlocks * 32> keys_{};
  std::array<std::string, kContextBlocks> bytes_;
  std::array<ems_iov, 2 * kContextBlocks> iov_{};
  std::array<ems_pieces, kContextBlocks> blocks_{};
  std::array<ems_status, kContextBlocks> codes_{};
};

TEST_F(ContextApiTest, KeysFollowTheChainAndTheDomain) {
  EXPECT_EQ(ems_context_key_size(context_), 32u);
  size_t count = 0;
  EXPECT_EQ(ems_context_hash_tokens(context_, tokens_.data(), tokens_.size(), nullptr, nullptr, 0,
                                    &count),
            EMS_OK);
  EXPECT_EQ(count, kContextBlocks);
  std::array<char, size_t{2} * 32> tail;
  ASSERT_EQ(ems_context_hash_tokens(context_, tokens_.data() + 2 * kBlockTokens, 2 * kBlockTokens,
                                    keys_.data() + 32, tail.data(), 2, &count),
            EMS_OK);
  EXPECT_EQ(std::string(tail.data(), 64), std::string(keys_.data() + 64, 64));
  EXPECT_EQ(ems_context_hash_tokens(context_, tokens_.data(), tokens_.size(), nullptr, tail.data(),
                                    2, &count),
            EMS_OUT_OF_RANGE);
  EXPECT_EQ(count, kContextBlocks);

  ems_context* other = Make("another tenant");
  std::array<char, kContextBlocks * 32> theirs;
  ASSERT_EQ(ems_context_hash_tokens(other, tokens_.data(), tokens_.size(), nullptr, theirs.data(),
                                    kContextBlocks, &count),
            EMS_OK);
  EXPECT_NE(keys_, theirs);
  std::array<char, 32> mine, his;
  ASSERT_EQ(ems_context_own_key(context_, "block", 5, mine.data()), EMS_OK);
  ASSERT_EQ(ems_context_own_key(other, "block", 5, his.data()), EMS_OK);
  EXPECT_NE(mine, his);
  ems_context_destroy(other);

  ems_context* quick = Make("salt", EMS_HASH_XXH3_128);
  EXPECT_EQ(ems_context_key_size(quick), 16u);
  ems_context_destroy(quick);
}

TEST_F(ContextApiTest, SaveLookupLoad) {
  size_t leading = 9, stored = 9;
  EXPECT_EQ(ems_context_lookup(context_, keys_.data(), kContextBlocks, nullptr, nullptr, &leading),
            EMS_NOT_FOUND);
  EXPECT_EQ(leading, 0u);
  ASSERT_EQ(
      ems_context_save(context_, keys_.data(), 3, blocks_.data(), nullptr, codes_.data(), &stored),
      EMS_OK)
      << ems_last_error();
  EXPECT_EQ(stored, 3u);
  ASSERT_EQ(ems_context_save(context_, keys_.data(), 3, blocks_.data(), nullptr, nullptr, &stored),
            EMS_OK);
  EXPECT_EQ(stored, 0u) << "they were there already";
  EXPECT_EQ(
      ems_context_lookup(context_, keys_.data(), kContextBlocks, nullptr, codes_.data(), &leading),
      EMS_NOT_FOUND);
  EXPECT_EQ(leading, 3u);
  EXPECT_THAT(codes_, ElementsAre(EMS_OK, EMS_OK, EMS_OK, EMS_NOT_FOUND));
  Blank();
  ASSERT_EQ(
      ems_context_load(context_, keys_.data(), 3, blocks_.data(), nullptr, codes_.data(), &leading),
      EMS_OK);
  EXPECT_EQ(leading, 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(bytes_[i], std::string(kBlockBytes, static_cast<char>('a' + i)));
  }
  // Room of another size: not the block that is wanted.
  iov_[1].size -= 1;
  EXPECT_EQ(
      ems_context_load(context_, keys_.data(), 3, blocks_.data(), nullptr, codes_.data(), &leading),
      EMS_NOT_FOUND);
  EXPECT_EQ(leading, 0u);
}

TEST_F(ContextApiTest, TheSameThroughACompletionQueue) {
  ems_cq* queue = nullptr;
  ASSERT_EQ(ems_cq_create(client_, 8, &queue), EMS_OK);
  const auto next = [&] {
    ems_completion done{};
    size_t count = 0;
    for (int i = 0; i < 10 && count == 0; ++i) {
      pollfd waiting{.fd = ems_cq_fd(queue), .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&waiting, 1, 20'000), 1);
      EXPECT_EQ(ems_cq_poll(queue, &done, 1, &count), EMS_OK);
    }
    return done;
  };
  ASSERT_EQ(ems_context_save_submit(context_, queue, 1, keys_.data(), 3, blocks_.data(), nullptr,
                                    codes_.data()),
            EMS_OK);
  ems_completion done = next();
  EXPECT_EQ(done.tag, 1u);
  EXPECT_EQ(done.code, EMS_OK);
  EXPECT_EQ(done.value, 3u);
  ASSERT_EQ(
      ems_context_lookup_submit(context_, queue, 2, keys_.data(), kContextBlocks, nullptr, nullptr),
      EMS_OK);
  done = next();
  EXPECT_EQ(done.code, EMS_NOT_FOUND);
  EXPECT_EQ(done.value, 3u);
  Blank();
  ASSERT_EQ(ems_context_load_submit(context_, queue, 3, keys_.data(), 3, blocks_.data(), nullptr,
                                    codes_.data()),
            EMS_OK);
  // The context may go while its calls are under way.
  ems_context_destroy(context_);
  context_ = nullptr;
  done = next();
  EXPECT_EQ(done.code, EMS_OK);
  EXPECT_EQ(done.value, 3u);
  EXPECT_EQ(bytes_[2], std::string(kBlockBytes, 'c'));
  ems_cq_destroy(queue);
}

TEST_F(ContextApiTest, BadInputIsACodeAndAText) {
  ems_context_options options;
  ems_context* made = nullptr;
  size_t count = 0;
  std::array<char, 64> room;
  const auto refused = [](ems_status code, const std::string& text) {
    EXPECT_EQ(code, EMS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr(text));
  };
  ASSERT_EQ(ems_context_options_init(&options, sizeof(options)), EMS_OK);
  refused(ems_context_create(client_, &options, &made), "model is NULL");
  options.model = options.dtype = options.kv_layout = "x";
  options.block_tokens = 15;
  refused(ems_context_create(client_, &options, &made), "15");
  options.block_tokens = 16;
  options.tp_rank = 1;
  refused(ems_context_create(client_, &options, &made), "tp_rank");
  options.tp_rank = 0;
  options.custom_count = 1;
  refused(ems_context_create(client_, &options, &made), "custom is NULL");
  options.custom_count = 0;
  options.multimodal_count = 5000;
  refused(ems_context_create(client_, &options, &made), "multimodal_count");
  options.multimodal_count = 0;
  options.hash_kind = 2;
  refused(ems_context_create(client_, &options, &made), "hash_kind");
  options.hash_kind = 0;
  refused(ems_context_create(nullptr, &options, &made), "client is NULL");
  refused(ems_context_create(client_, nullptr, &made), "options is NULL");
  refused(ems_context_create(client_, &options, nullptr), "context is NULL");

  refused(ems_context_hash_tokens(nullptr, tokens_.data(), 5, nullptr, nullptr, 0, &count),
          "context is NULL");
  refused(ems_context_hash_tokens(context_, nullptr, 5, nullptr, nullptr, 0, &count),
          "tokens is NULL");
  refused(ems_context_hash_tokens(context_, tokens_.data(), 0, nullptr, nullptr, 0, &count),
          "token_count is 0");
  refused(ems_context_hash_tokens(context_, tokens_.data(), 5, nullptr, nullptr, 1, &count),
          "keys is NULL");
  refused(ems_context_hash_tokens(context_, tokens_.data(), 5, nullptr, nullptr, 0, nullptr),
          "count is NULL");
  refused(ems_context_own_key(context_, "n", 0, room.data()), "name of 0 bytes");
  refused(ems_context_own_key(context_, "n", 1, nullptr), "key is NULL");
  refused(ems_context_lookup(context_, keys_.data(), 1, nullptr, nullptr, nullptr),
          "leading is NULL");
  refused(ems_context_lookup(nullptr, keys_.data(), 4, nullptr, codes_.data(), &count),
          "context is NULL");
  EXPECT_THAT(codes_, Each(EMS_INVALID_ARGUMENT));
  refused(ems_context_load(context_, nullptr, 1, blocks_.data(), nullptr, nullptr, &count),
          "keys is NULL");
  refused(ems_context_save(context_, keys_.data(), 1, nullptr, nullptr, nullptr, nullptr),
          "blocks is NULL");
  refused(ems_context_save_submit(context_, nullptr, 1, keys_.data(), 1, blocks_.data(), nullptr,
                                  nullptr),
          "queue is NULL");
  ems_client_options again;
  ems_client* other = nullptr;
  ems_cq* queue = nullptr;
  ASSERT_EQ(ems_client_options_init(&again, sizeof(again)), EMS_OK);
  again.controller = cluster_->controller_address().c_str();
  ASSERT_EQ(ems_connect(&again, &other), EMS_OK);
  ASSERT_EQ(ems_cq_create(other, 1, &queue), EMS_OK);
  refused(ems_context_lookup_submit(context_, queue, 1, keys_.data(), 1, nullptr, nullptr),
          "different clients");
  ems_client_destroy(other);
  ems_cq_destroy(queue);
  EXPECT_EQ(ems_context_key_size(nullptr), 0u);
  ems_context_destroy(nullptr);
}

}  // namespace
}  // namespace ems::capi
