// Paged KV through ems.h, against real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <vector>

#include "tests/integrations/c/kv_test.h"

namespace ems::capi {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class KvApiTest : public KvTest {};

TEST_F(KvApiTest, BlocksComeBackIntoOtherPages) {
  const std::vector<int64_t> from = Slots({5, 0, 3});
  Fill(5, 'A');
  Fill(0, 'B');
  Fill(3, 'C');
  size_t stored = 0, leading = 0;
  ASSERT_EQ(ems_kv_save(kv_, keys_.data(), kBlocks, from.data(), from.size(), nullptr,
                        codes_.data(), &stored),
            EMS_OK)
      << ems_last_error();
  EXPECT_EQ(stored, kBlocks);
  const std::array<std::string, 4> before = memory_;
  for (std::string& tensor : memory_) tensor.replace(0, tensor.size(), tensor.size(), '?');
  const std::vector<int64_t> into = Slots({1, 2, 7});
  ASSERT_EQ(ems_kv_load(kv_, keys_.data(), kBlocks, into.data(), into.size(), nullptr,
                        codes_.data(), &leading),
            EMS_OK)
      << ems_last_error();
  EXPECT_EQ(leading, kBlocks);
  const size_t page_bytes = kTokens * kTokenBytes;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Part(i, 1), before[i].substr(5 * page_bytes, page_bytes)) << i;
    EXPECT_EQ(Part(i, 2), before[i].substr(0, page_bytes)) << i;
    EXPECT_EQ(Part(i, 7), before[i].substr(3 * page_bytes, page_bytes)) << i;
    EXPECT_EQ(Part(i, 0), std::string(page_bytes, '?')) << "a page that nobody named";
  }
}

TEST_F(KvApiTest, TheSameThroughACompletionQueue) {
  ems_cq* queue = nullptr;
  ASSERT_EQ(ems_cq_create(client_, 4, &queue), EMS_OK);
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
  Fill(4, 'X');
  std::vector<int64_t> slots = Slots({4, 5, 6});
  ASSERT_EQ(ems_kv_save_submit(kv_, queue, 1, keys_.data(), 1, slots.data(), kTokens, nullptr,
                               codes_.data()),
            EMS_OK);
  slots.assign(slots.size(), -5);  // copied at the submit
  ems_completion done = next();
  EXPECT_EQ(done.code, EMS_OK) << ems_last_error();
  EXPECT_EQ(done.value, 1u);
  slots = Slots({0, 1, 2});
  ASSERT_EQ(ems_kv_load_submit(kv_, queue, 2, keys_.data(), kBlocks, slots.data(), slots.size(),
                               nullptr, codes_.data()),
            EMS_OK);
  done = next();
  EXPECT_EQ(done.tag, 2u);
  EXPECT_EQ(done.code, EMS_NOT_FOUND);
  EXPECT_EQ(done.value, 1u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(Part(i, 0), Part(i, 4));
  ems_cq_destroy(queue);
}

TEST_F(KvApiTest, ABlockOfAnotherLengthIsAMiss) {
  std::string other(100, 'x');
  ems_iov piece = PieceOf(&other);
  const ems_pieces block{.iov = &piece, .count = 1};
  ASSERT_EQ(ems_context_save(context_, keys_.data(), 1, &block, nullptr, nullptr, nullptr), EMS_OK);
  const std::vector<int64_t> slots = Slots({0, 1, 2});
  size_t leading = 9;
  EXPECT_EQ(ems_kv_load(kv_, keys_.data(), 1, slots.data(), kTokens, nullptr, nullptr, &leading),
            EMS_NOT_FOUND);
  EXPECT_EQ(leading, 0u);
}

TEST_F(KvApiTest, BadInputIsACodeAndAText) {
  std::array<char, 8> small;
  size_t length = 0, leading = 0;
  ems_kv* other = nullptr;
  const std::vector<int64_t> slots = Slots({0, 1, 2});
  const auto refused = [](ems_status code, const std::string& text) {
    EXPECT_EQ(code, EMS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr(text));
  };
  EXPECT_EQ(ems_kv_fingerprint(tensors_.data(), 4, small.data(), small.size(), &length),
            EMS_OUT_OF_RANGE);
  EXPECT_GT(length, small.size());
  refused(ems_kv_fingerprint(tensors_.data(), 4, nullptr, 9, &length), "text is NULL");
  refused(ems_kv_fingerprint(tensors_.data(), 4, small.data(), 9, nullptr), "length is NULL");
  refused(ems_kv_register(nullptr, tensors_.data(), 4, &other), "context is NULL");
  refused(ems_kv_register(context_, nullptr, 4, &other), "tensors is NULL");
  refused(ems_kv_register(context_, tensors_.data(), 4, nullptr), "kv is NULL");
  refused(ems_kv_register(context_, tensors_.data(), 2, &other), "ems_kv_fingerprint");
  EXPECT_EQ(other, nullptr);
  refused(ems_kv_load(nullptr, keys_.data(), 3, slots.data(), slots.size(), nullptr, codes_.data(),
                      &leading),
          "kv is NULL");
  EXPECT_THAT(codes_, Each(EMS_INVALID_ARGUMENT));
  refused(ems_kv_load(kv_, keys_.data(), 3, slots.data(), slots.size(), nullptr, nullptr, nullptr),
          "leading is NULL");
  refused(ems_kv_save(kv_, keys_.data(), 2, slots.data(), slots.size(), nullptr, nullptr, nullptr),
          "slot_count is 48");
  refused(ems_kv_save_submit(kv_, nullptr, 1, keys_.data(), 3, slots.data(), slots.size(), nullptr,
                             nullptr),
          "queue is NULL");
  ems_kv_unregister(nullptr);
}

}  // namespace
}  // namespace ems::capi
