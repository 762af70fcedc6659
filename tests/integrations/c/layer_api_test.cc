// Layer by layer through ems.h, against real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
#include "tests/integrations/c/kv_test.h"

namespace ems::capi {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kWaitMs = 20'000;
constexpr uint32_t kLayers = 2;

class LayerApiTest : public KvTest {
 protected:
  void SetUp() override {
    KvTest::SetUp();
    ems_kv_unregister(kv_);
    ems_kv_options options;
    ASSERT_EQ(ems_kv_options_init(&options, sizeof(options)), EMS_OK);
    options.layer_read_bytes = 1;  // each layer is a read of its own
    ASSERT_EQ(ems_kv_register_with(context_, tensors_.data(), tensors_.size(), &options, &kv_),
              EMS_OK)
        << ems_last_error();
    Fill(5, 'A');
    Fill(0, 'B');
    Fill(3, 'C');
  }
  void TearDown() override {
    ems_layer_load_destroy(load_);
    KvTest::TearDown();
  }
  // Saves the blocks in pages 5, 0, 3 whose numbers are given.
  void Save(const std::vector<size_t>& blocks) {
    const std::vector<int64_t> slots = Slots({5, 0, 3});
    for (const size_t i : blocks) {
      ASSERT_EQ(ems_kv_save(kv_, keys_.data() + i * 32, 1, slots.data() + i * kTokens, kTokens,
                            nullptr, nullptr, nullptr),
                EMS_OK)
          << ems_last_error();
    }
  }
  // Begins a load of all blocks into pages 1, 2, 7.
  ems_status Begin(ems_kv* kv, const ems_call_options* options = nullptr) {
    const std::vector<int64_t> slots = Slots({1, 2, 7});
    const ems_kv_slots group{.slots = slots.data(), .slot_count = slots.size(), .tokens = nullptr};
    const ems_kv_blocks blocks{
        .keys = keys_.data(), .count = kBlocks, .groups = &group, .group_count = 1};
    return ems_kv_load_layers(kv, &blocks, options, &load_);  // slots and keys need not stay
  }
  // Layer `layer` of pages 1, 2, 7 is that of pages 5, 0, 3.
  void ExpectLayer(size_t layer) const {
    for (size_t i = 2 * layer; i < 2 * layer + 2; ++i) {
      EXPECT_EQ(Part(i, 1), Part(i, 5)) << i;
      EXPECT_EQ(Part(i, 2), Part(i, 0)) << i;
      EXPECT_EQ(Part(i, 7), Part(i, 3)) << i;
    }
  }

  ems_layer_load* load_ = nullptr;
  std::array<uint8_t, kBlocks> missing_{};
  size_t leading_ = 0;
};

TEST_F(LayerApiTest, LayersComeInTheirOrder) {
  Save({0, 1, 2});
  ASSERT_EQ(Begin(kv_), EMS_OK) << ems_last_error();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    missing_.fill(9);
    ASSERT_EQ(ems_layer_load_wait(load_, layer, kWaitMs, &leading_, missing_.data()), EMS_OK)
        << ems_last_error();
    EXPECT_GT(ems_layer_load_ready(load_), layer);
    EXPECT_EQ(leading_, kBlocks);
    EXPECT_THAT(missing_, Each(0));
    ExpectLayer(layer);
  }
  EXPECT_EQ(ems_layer_load_result(load_, codes_.data(), &leading_), EMS_OK);
  EXPECT_EQ(leading_, kBlocks);
  EXPECT_THAT(codes_, Each(EMS_OK));
}

TEST_F(LayerApiTest, BlocksThatAreGoneAreNamed) {
  Save({0, 2});
  ASSERT_EQ(Begin(kv_), EMS_OK) << ems_last_error();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(ems_layer_load_wait(load_, layer, kWaitMs, &leading_, missing_.data()),
              EMS_NOT_FOUND);
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr("1 of 3 blocks"));
    EXPECT_EQ(leading_, 1u);
    EXPECT_THAT(missing_, ElementsAre(0, 1, 0));
  }
  EXPECT_EQ(ems_layer_load_result(load_, codes_.data(), &leading_), EMS_NOT_FOUND);
  EXPECT_EQ(leading_, 1u);
  EXPECT_THAT(codes_, ElementsAre(EMS_OK, EMS_NOT_FOUND, EMS_OK));
}

TEST_F(LayerApiTest, AWaitEndsBeforeTheLoadAndTheLoadInItsTime) {
  Save({0, 1, 2});
  ems_client_options connect;
  ASSERT_EQ(ems_client_options_init(&connect, sizeof(connect)), EMS_OK);
  connect.controller = cluster_->controller_address().c_str();
  connect.transport = EMS_TRANSPORT_TCP;  // reads need the server
  ems_client* client = nullptr;
  ASSERT_EQ(ems_connect(&connect, &client), EMS_OK) << ems_last_error();
  ems_context* context = MakeContext(client);
  ems_kv* kv = nullptr;
  ASSERT_EQ(ems_kv_register(context, tensors_.data(), tensors_.size(), &kv), EMS_OK);
  for (int i = 0; i < cluster_->server_count(); ++i) {
    cluster_->server(i).Signal(SIGSTOP);
    siginfo_t stopped{};
    ASSERT_EQ(
        ::waitid(P_PID, static_cast<id_t>(cluster_->server(i).pid()), &stopped, WSTOPPED | WNOWAIT),
        0);
  }
  ems_call_options options;
  ASSERT_EQ(ems_call_options_init(&options, sizeof(options)), EMS_OK);
  options.timeout_ms = 400;
  ASSERT_EQ(Begin(kv, &options), EMS_OK) << ems_last_error();
  EXPECT_EQ(ems_layer_load_wait(load_, 0, 0, &leading_, nullptr), EMS_DEADLINE_EXCEEDED);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("layer 0 is not there yet"));
  EXPECT_EQ(ems_layer_load_wait(load_, 1, kWaitMs, &leading_, missing_.data()), EMS_NOT_FOUND);
  EXPECT_EQ(leading_, 0u);
  EXPECT_THAT(missing_, Each(1));
  // Late, or, for a server that did not even answer a greeting, gone.
  EXPECT_THAT(ems_layer_load_result(load_, codes_.data(), &leading_),
              AnyOf(EMS_DEADLINE_EXCEEDED, EMS_UNAVAILABLE));
  for (int i = 0; i < cluster_->server_count(); ++i) cluster_->server(i).Signal(SIGCONT);
  ems_kv_unregister(kv);
  ems_context_destroy(context);
  ems_client_destroy(client);
}

TEST_F(LayerApiTest, WhatIsGivenBackUnderWayTouchesNoSlotAnyMore) {
  Save({0, 1, 2});
  for (int round = 0; round < 200; ++round) {
    ASSERT_EQ(Begin(kv_), EMS_OK) << ems_last_error();
    if (round % 2 == 0) {
      EXPECT_EQ(ems_layer_load_cancel(load_), EMS_OK);
      const ems_status code = ems_layer_load_result(load_, codes_.data(), &leading_);
      EXPECT_TRUE(code == EMS_CANCELLED || code == EMS_OK) << ems_last_error();
      EXPECT_EQ(ems_layer_load_ready(load_), kLayers);
    }
    ems_layer_load_destroy(load_);
    load_ = nullptr;
    for (std::string& tensor : memory_) tensor.assign(tensor.size(), '~');  // sanitizers watch
    for (const std::string& tensor : memory_)
      ASSERT_EQ(tensor.find_first_not_of('~'), std::string::npos) << "round " << round;
  }
}

TEST_F(LayerApiTest, HandlesGoBackInAnyOrder) {
  Save({0, 1, 2});
  ASSERT_EQ(Begin(kv_), EMS_OK) << ems_last_error();
  ems_client_destroy(std::exchange(client_, nullptr));
  ems_context_destroy(std::exchange(context_, nullptr));
  ems_kv_unregister(std::exchange(kv_, nullptr));
  EXPECT_EQ(ems_layer_load_result(load_, nullptr, &leading_), EMS_OK) << ems_last_error();
  ExpectLayer(1);
}

TEST_F(LayerApiTest, SeveralThreadsWaitWhileAnotherCancels) {
  Save({0, 1, 2});
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(Begin(kv_), EMS_OK) << ems_last_error();
    std::atomic<int> wrong = 0;
    const auto wait = [&] {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        size_t leading = 0;
        std::array<uint8_t, kBlocks> missing{};
        const ems_status code =
            ems_layer_load_wait(load_, layer, kWaitMs, &leading, missing.data());
        const bool whole = code == EMS_OK && leading == kBlocks;
        const bool cut = code == EMS_NOT_FOUND && leading < kBlocks && missing[leading] == 1;
        if (!whole && !cut) ++wrong;
      }
    };
    Thread first("first", wait), second("second", wait);
    if (ems_layer_load_cancel(load_) != EMS_OK) ++wrong;
    first.Join();
    second.Join();
    EXPECT_EQ(wrong, 0);
    ems_layer_load_destroy(std::exchange(load_, nullptr));
  }
}

TEST_F(LayerApiTest, AChildIsToldToConnectAgain) {
  Save({0, 1, 2});
  ASSERT_EQ(Begin(kv_), EMS_OK) << ems_last_error();
  ASSERT_EQ(ems_layer_load_result(load_, nullptr, &leading_), EMS_OK);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);  // whatever waits for a thread of its parent ends here
    size_t leading = 9;
    const bool told =
        ems_layer_load_wait(load_, 0, 0, &leading, nullptr) == EMS_FAILED_PRECONDITION &&
        ems_layer_load_result(load_, nullptr, &leading) == EMS_FAILED_PRECONDITION &&
        ems_layer_load_cancel(load_) == EMS_FAILED_PRECONDITION &&
        ems_layer_load_ready(load_) == 0 && leading == 0;
    ems_layer_load_destroy(load_);
    ::_exit(told ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(ems_layer_load_ready(load_), kLayers);
}

TEST_F(LayerApiTest, BadInputIsACodeAndAText) {
  Save({0, 1, 2});
  const auto refused = [](ems_status code, const std::string& text) {
    EXPECT_EQ(code, EMS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr(text));
  };
  const std::vector<int64_t> slots = Slots({1, 2, 7});
  ems_kv_slots group{.slots = slots.data(), .slot_count = slots.size(), .tokens = nullptr};
  ems_kv_blocks blocks{.keys = keys_.data(), .count = kBlocks, .groups = &group, .group_count = 1};
  refused(ems_kv_load_layers(kv_, &blocks, nullptr, nullptr), "load is NULL");
  refused(ems_kv_load_layers(nullptr, &blocks, nullptr, &load_), "kv is NULL");
  refused(ems_kv_load_layers(kv_, nullptr, nullptr, &load_), "blocks is NULL");
  blocks.count = 0;
  refused(ems_kv_load_layers(kv_, &blocks, nullptr, &load_), "count is 0");
  EXPECT_EQ(load_, nullptr);
  refused(ems_layer_load_wait(nullptr, 0, 0, &leading_, nullptr), "load is NULL");
  refused(ems_layer_load_result(nullptr, nullptr, &leading_), "load is NULL");
  refused(ems_layer_load_cancel(nullptr), "load is NULL");
  EXPECT_EQ(ems_layer_load_ready(nullptr), 0u);
  ems_layer_load_destroy(nullptr);
  ASSERT_EQ(Begin(kv_), EMS_OK);
  refused(ems_layer_load_wait(load_, 0, 0, nullptr, nullptr), "leading is NULL");
  refused(ems_layer_load_result(load_, nullptr, nullptr), "leading is NULL");
  EXPECT_EQ(ems_layer_load_wait(load_, kLayers, kWaitMs, &leading_, nullptr), EMS_OUT_OF_RANGE);
  EXPECT_EQ(ems_layer_load_wait(load_, UINT32_MAX, 0, &leading_, nullptr), EMS_OUT_OF_RANGE);
}

}  // namespace
}  // namespace ems::capi
