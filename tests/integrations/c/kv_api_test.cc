// Paged KV through ems.h, against real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
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

// Pages for loads that are under way at the same time: each has one of its own.
constexpr std::array<size_t, 5> kRooms = {1, 2, 4, 6, 7};

TEST_F(KvApiTest, CallsUnderWayOutliveAllHandlesButTheirQueue) {
  constexpr size_t kCalls = kRooms.size();
  const std::vector<int64_t> from = Slots({5, 0, 3});
  Fill(5, 'A');
  ASSERT_EQ(ems_kv_save(kv_, keys_.data(), 1, from.data(), kTokens, nullptr, nullptr, nullptr),
            EMS_OK);
  ems_cq* queue = nullptr;
  ASSERT_EQ(ems_cq_create(client_, kCalls, &queue), EMS_OK);
  std::array<ems_status, kCalls> codes{};
  for (size_t i = 0; i < kCalls; ++i) {
    const std::vector<int64_t> into = Slots({kRooms.at(i), 0, 0});
    ASSERT_EQ(ems_kv_load_submit(kv_, queue, i, keys_.data(), 1, into.data(), kTokens, nullptr,
                                 &codes.at(i)),
              EMS_OK)
        << ems_last_error();
  }
  EXPECT_EQ(ems_kv_load_submit(kv_, queue, kCalls, keys_.data(), 1, from.data(), kTokens, nullptr,
                               nullptr),
            EMS_RESOURCE_EXHAUSTED)
      << "nothing was polled";
  ems_kv_unregister(std::exchange(kv_, nullptr));
  ems_context_destroy(std::exchange(context_, nullptr));
  ems_client_destroy(std::exchange(client_, nullptr));
  std::array<ems_completion, kCalls> done{};
  for (size_t seen = 0; seen < kCalls;) {
    pollfd waiting{.fd = ems_cq_fd(queue), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waiting, 1, 20'000), 1);
    size_t count = 0;
    ASSERT_EQ(ems_cq_poll(queue, done.data(), kCalls, &count), EMS_OK);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(done.at(i).code, EMS_OK) << done.at(i).tag;
    seen += count;
  }
  EXPECT_THAT(codes, Each(EMS_OK));
  for (const size_t page : kRooms) EXPECT_EQ(Part(0, page), Part(0, 5));
  ems_cq_destroy(queue);
}

TEST_F(KvApiTest, BehindTheEndOfAQueueNoMemoryOfItsCallsIsTouched) {
  const std::vector<int64_t> from = Slots({5, 0, 3});
  ASSERT_EQ(ems_kv_save(kv_, keys_.data(), 1, from.data(), kTokens, nullptr, nullptr, nullptr),
            EMS_OK);
  for (int round = 0; round < 100; ++round) {
    ems_cq* queue = nullptr;
    ASSERT_EQ(ems_cq_create(client_, kRooms.size(), &queue), EMS_OK);
    std::array<ems_status, kRooms.size()> codes{};
    codes.fill(-1);
    for (size_t i = 0; i < kRooms.size(); ++i) {
      const std::vector<int64_t> into = Slots({kRooms.at(i), 0, 0});
      ASSERT_EQ(ems_kv_load_submit(kv_, queue, i, keys_.data(), 1, into.data(), kTokens, nullptr,
                                   &codes.at(i)),
                EMS_OK);
    }
    ems_cq_destroy(queue);
    for (const ems_status code : codes) EXPECT_TRUE(code == EMS_OK || code == EMS_CANCELLED);
    for (std::string& tensor : memory_) tensor.assign(tensor.size(), '~');
    for (const std::string& tensor : memory_)
      ASSERT_EQ(tensor.find_first_not_of('~'), std::string::npos) << "round " << round;
  }
}

// Two threads, one of each handle: each loads into pages of its own.
TEST_F(KvApiTest, HandlesServeSeveralThreads) {
  Fill(5, 'A');
  Fill(0, 'B');
  Fill(3, 'C');
  const std::vector<int64_t> from = Slots({5, 0, 3});
  ASSERT_EQ(
      ems_kv_save(kv_, keys_.data(), kBlocks, from.data(), from.size(), nullptr, nullptr, nullptr),
      EMS_OK);
  std::atomic<int> wrong = 0;
  const auto load = [&](size_t page) {
    const std::vector<int64_t> into = Slots({page, 0, 0});
    for (int i = 0; i < 200; ++i) {
      size_t leading = 0;
      const ems_status code =
          ems_kv_load(kv_, keys_.data(), 1, into.data(), kTokens, nullptr, nullptr, &leading);
      if (code != EMS_OK || leading != 1 || Part(0, page) != Part(0, 5)) ++wrong;
      // A mistake of one thread is not in the text of the other.
      ems_kv_load(page == 1 ? nullptr : kv_, keys_.data(), page == 1 ? 1 : 0, into.data(), kTokens,
                  nullptr, nullptr, &leading);
      if (std::string(ems_last_error()).find(page == 1 ? "kv is NULL" : "count is 0") ==
          std::string::npos)
        ++wrong;
    }
  };
  Thread first("first", [&] { load(1); }), second("second", [&] { load(2); });
  first.Join();
  second.Join();
  EXPECT_EQ(wrong, 0);
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
  refused(ems_kv_load_submit(kv_, nullptr, 1, keys_.data(), 3, slots.data(), slots.size(), nullptr,
                             codes_.data()),
          "queue is NULL");
  EXPECT_THAT(codes_, Each(EMS_INVALID_ARGUMENT));
  codes_.fill(EMS_OK);
  refused(ems_kv_load(kv_, keys_.data(), 3, slots.data(), slots.size(), nullptr, codes_.data(),
                      nullptr),
          "leading is NULL");
  EXPECT_THAT(codes_, Each(EMS_INVALID_ARGUMENT));
  refused(ems_kv_load(kv_, keys_.data(), 0, slots.data(), 0, nullptr, nullptr, &leading),
          "count is 0");
  refused(ems_kv_load(kv_, keys_.data(), SIZE_MAX, slots.data(), SIZE_MAX, nullptr, codes_.data(),
                      &leading),
          "count is 18446744073709551615");
  ems_call_options wrong{};  // no init: no size
  refused(ems_kv_load(kv_, keys_.data(), 3, slots.data(), slots.size(), &wrong, nullptr, &leading),
          "ems_call_options of 0 bytes");
  ems_kv_unregister(nullptr);
}

}  // namespace
}  // namespace ems::capi
