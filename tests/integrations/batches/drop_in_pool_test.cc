// The drop-in SDK's batches against real daemons; what Python adds: tests/integrations/python/.
#include "integrations/batches/drop_in_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/support/cluster.h"

namespace ems::batches {
namespace {

using std::chrono::seconds;

class DropInPoolTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    testing::Cluster::Options options;
    options.servers = 2;
    auto started = testing::Cluster::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    ASSERT_NE(cluster_, nullptr);
    auto opened = DropInPool::Open(Options());
    ASSERT_TRUE(opened.ok()) << opened.status();
    pool_ = *std::move(opened);
  }
  // A domain of its own for each test.
  static DropInPoolOptions Options() {
    DropInPoolOptions options;
    options.controller = cluster_->controller_address();
    options.name_space = "default";
    options.domain.model = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return options;
  }
  // Two blocks of 6 bytes, of two pieces each.
  DropInBatch Batch(bool is_load, std::array<std::string, 4>* pieces) {
    DropInBatch batch;
    batch.is_load = is_load;
    batch.timeout = seconds(10);
    batch.hashes = {{.bits = 1}, {.bits = static_cast<uint64_t>(-1)}};
    for (std::string& piece : *pieces) {
      batch.parts.emplace_back(reinterpret_cast<std::byte*>(piece.data()), piece.size());
    }
    batch.part_ends = {2, 4};
    return batch;
  }

  static constexpr uint64_t kPage = 4096;
  // Two blocks of a page of 16 tokens each, `stride` apart: the same blocks with any stride.
  static DropInBatch PagedBatch(bool is_load, std::byte* data, uint64_t stride) {
    const context::KvTensor tensor{.data = data,
                                   .bytes = stride + kPage,
                                   .dtype = context::KvDtype::kUint8,
                                   .blocks = 2,
                                   .block_tokens = 16,
                                   .head_size = kPage / 16,
                                   .block_stride = stride};
    auto layout = context::KvLayout::Make({{.tensors = {tensor}}});
    EXPECT_TRUE(layout.ok()) << layout.status();
    DropInBatch batch;
    batch.is_load = is_load;
    batch.timeout = seconds(10);
    batch.hashes = {{.bits = 1}, {.bits = 2}};
    batch.layout = std::make_shared<const context::KvLayout>(*std::move(layout));
    batch.runs = {{0, 16}, {16, 16}};
    batch.run_ends = {1, 2};
    return batch;
  }

  static inline std::unique_ptr<testing::Cluster> cluster_;
  std::unique_ptr<DropInPool> pool_;
  std::array<std::string, 4> saved_ = {"abc", "def", "gh", "ijkl"};
  std::array<std::string, 4> loaded_ = {"...", "...", "..", "...."};
};

TEST_F(DropInPoolTest, WhatIsSavedIsThereAndIsLoadedPieceByPiece) {
  const DropInOutcome absent = pool_->Exists(Batch(true, &loaded_));
  EXPECT_EQ(absent.success, 0u);
  EXPECT_EQ(absent.total, 2u);
  EXPECT_EQ(pool_->Run(Batch(false, &saved_)).success, 2u);
  EXPECT_EQ(pool_->Exists(Batch(true, &loaded_)).success, 2u);
  const auto operation = pool_->Submit(Batch(true, &loaded_));
  const DropInOutcome outcome = operation->Wait();
  EXPECT_EQ(outcome.status, OkStatus());
  EXPECT_EQ(outcome.success, 2u);
  EXPECT_TRUE(operation->Ready());
  EXPECT_EQ(loaded_, saved_);
}

TEST_F(DropInPoolTest, ABlockInOnePieceWithRoomBehindItIsOneValueAsItLies) {
  constexpr uint64_t kRow = kPage + DropInPool::kSealBytes;
  auto buffer = pool_->AllocateBuffer(2 * kRow);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const MutableBytes memory = buffer->bytes();
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7);
  const std::vector<std::byte> before(memory.begin(), memory.end());
  DropInBatch save = PagedBatch(false, memory.data(), kRow);
  save.seal_room = true;
  EXPECT_EQ(pool_->Run(save).success, 2u);
  std::vector<std::byte> elsewhere(2 * kPage);
  EXPECT_EQ(pool_->Run(PagedBatch(true, elsewhere.data(), kPage)).success, 2u);
  for (const size_t block : {0u, 1u}) {
    const auto row = memory.subspan(block * kRow, kRow);
    const auto was = std::span(before).subspan(block * kRow, kRow);
    EXPECT_TRUE(std::equal(row.begin(), row.begin() + kPage, was.begin()));
    EXPECT_FALSE(std::equal(row.begin() + kPage, row.end(), was.begin() + kPage)) << "its seal";
    const auto loaded = std::span(elsewhere).subspan(block * kPage, kPage);
    EXPECT_TRUE(std::equal(loaded.begin(), loaded.end(), was.begin()));
  }
}

TEST_F(DropInPoolTest, WithoutRoomBehindABlockNothingThereIsWritten) {
  std::vector<std::byte> memory(2 * kPage + 64, std::byte{9});
  EXPECT_EQ(pool_->Run(PagedBatch(false, memory.data(), kPage + 32)).success, 2u);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{9}),
            static_cast<ptrdiff_t>(memory.size()));
}

TEST_F(DropInPoolTest, AnotherSplitOfTheSameBytesIsAMissUntilItReplacesThem) {
  ASSERT_EQ(pool_->Run(Batch(false, &saved_)).success, 2u);
  std::array<std::string, 4> other = {"...", "...", "....", ".."};
  EXPECT_EQ(pool_->Run(Batch(true, &other)).success, 1u);
  EXPECT_EQ(pool_->Run(Batch(true, &loaded_)).success, 2u);
  other = {"abc", "def", "ghij", "kl"};
  ASSERT_EQ(pool_->Run(Batch(false, &other)).success, 2u);
  std::array<std::string, 4> again = {"...", "...", "....", ".."};
  EXPECT_EQ(pool_->Run(Batch(true, &again)).success, 2u);
  EXPECT_EQ(again, other);
  EXPECT_EQ(pool_->Run(Batch(true, &loaded_)).success, 1u);
}

TEST_F(DropInPoolTest, SuccessIsCountedFromTheFront) {
  ASSERT_EQ(pool_->Run(Batch(false, &saved_)).success, 2u);
  DropInBatch batch = Batch(true, &loaded_);
  batch.hashes[0].bits = 77;
  EXPECT_EQ(pool_->Run(batch).success, 0u);
  DropInBatch large = Batch(true, &loaded_);
  large.hashes[1].is_large = true;  // the same bits are another name
  EXPECT_EQ(pool_->Run(large).success, 1u);
}

TEST_F(DropInPoolTest, MemoryOfNobodyIsAnErrorAndNotTheEnd) {
  DropInBatch batch = Batch(false, &saved_);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that nobody has
  batch.parts[3] = {reinterpret_cast<std::byte*>(uintptr_t{4096}), 8};
  const DropInOutcome outcome = pool_->Run(batch);
  EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
  EXPECT_EQ(outcome.success, 0u);
}

TEST_F(DropInPoolTest, BehindCloseEverythingIsAMiss) {
  ASSERT_EQ(pool_->Run(Batch(false, &saved_)).success, 2u);
  pool_->Close();
  EXPECT_EQ(pool_->Run(Batch(true, &loaded_)).success, 0u);
  EXPECT_EQ(pool_->Exists(Batch(true, &loaded_)).success, 0u);
  const DropInOutcome outcome = pool_->Submit(Batch(true, &loaded_))->Wait();
  EXPECT_EQ(outcome.status, OkStatus());
  EXPECT_EQ(outcome.success, 0u);
  EXPECT_EQ(loaded_[0], "...");
}

TEST_F(DropInPoolTest, ABatchWithoutTimeIsLate) {
  DropInBatch batch = Batch(false, &saved_);
  batch.timeout = Duration{0};
  EXPECT_EQ(pool_->Submit(std::move(batch))->Wait().status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(DropInPoolTest, AChildOfForkHasNoPartInWhatItsParentSubmitted) {
  const auto operation = pool_->Submit(Batch(false, &saved_));
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(operation->Ready() && operation->Wait().status.code() == StatusCode::kUnavailable ? 0
                                                                                              : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(operation->Wait().success, 2u);
}

TEST_F(DropInPoolTest, OthersSeeWhetherThePoolIsThere) {
  EXPECT_TRUE(pool_->Healthy());
  EXPECT_TRUE(DropInPool::Probe(Options()));
  DropInPoolOptions nowhere = Options();
  nowhere.controller = "127.0.0.1:1";
  nowhere.start_timeout = std::chrono::milliseconds(100);
  EXPECT_FALSE(DropInPool::Probe(nowhere));
  EXPECT_EQ(DropInPool::Open(nowhere).status().code(), StatusCode::kUnavailable);
  nowhere.domain.tp_rank = 5;
  EXPECT_EQ(DropInPool::Open(nowhere).status().code(), StatusCode::kInvalidArgument);
  const auto missed = DropInOperation::Missed(7);
  EXPECT_TRUE(missed->Ready());
  EXPECT_EQ(missed->Wait().total, 7u);
}

}  // namespace
}  // namespace ems::batches
