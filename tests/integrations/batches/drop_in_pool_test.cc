// The drop-in SDK's batches against real daemons; what Python adds: tests/integrations/python/.
#include "integrations/batches/drop_in_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

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
