// What must hold: an operator's word and the machine's need reach the pool, and who evicts is told.
#include "mp_server/memory/pool_size.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/check.h"
#include "tests/mp_server/store/memory_fixture.h"
#include "tests/support/eventually.h"

namespace ems::server {
namespace {

using ems::testing::Eventually;

class PoolSizeTest : public ::testing::Test {
 protected:
  PoolSizeTest() : proc_(::testing::TempDir() + "ems-pool-size-XXXXXX") {
    EMS_CHECK(::mkdtemp(proc_.data()) != nullptr);
  }
  ~PoolSizeTest() override { std::filesystem::remove_all(proc_); }
  // What is left on the machine from now on.
  void Left(uint64_t bytes) {
    const std::string path = proc_ + "/meminfo";
    std::ofstream(path + ".new") << "MemTotal: 1048576 kB\nMemAvailable: " << bytes / kKiB
                                 << " kB\n";
    std::filesystem::rename(path + ".new", path);
  }
  PoolSize::Options Elastic(SegmentPool* pool) {
    PoolSize::Options options = Plain(pool);
    options.is_elastic = true;
    options.elastic = {.bytes_min = 4 * kMiB,
                       .keep_free_bytes = 8 * kMiB,
                       .step_bytes = 2 * kMiB,
                       .grow_after = std::chrono::milliseconds(100)};
    options.roots = {.proc = proc_, .cgroup = proc_};
    return options;
  }
  PoolSize::Options Plain(SegmentPool* pool) {
    PoolSize::Options options;
    options.pool = pool;
    options.bytes = 16 * kMiB;
    options.on_change = [this] { ++changes_; };
    options.on_pressure = [this](uint64_t bytes) { given_back_ += bytes; };
    return options;
  }

  std::string proc_;
  std::atomic<uint64_t> changes_{0}, given_back_{0};
};

TEST_F(PoolSizeTest, AnOperatorsWordTakesEffectAtOnceAndCanBeTakenBack) {
  SegmentPool pool(SmallPool(16 * kMiB));
  PoolSize size(Plain(&pool));
  size.SetMost(6 * kMiB);
  EXPECT_EQ(pool.bytes_max(), 6 * kMiB);
  EXPECT_EQ(changes_, 1u);
  size.SetMost(6 * kMiB);  // each heartbeat says it again
  EXPECT_EQ(changes_, 1u);
  size.SetMost(20 * kMiB);
  EXPECT_EQ(pool.bytes_max(), 20 * kMiB);
  size.SetMost(1);
  EXPECT_EQ(pool.bytes_max(), 2 * kMiB);  // a segment
  size.SetMost(0);
  EXPECT_EQ(pool.bytes_max(), 16 * kMiB);
  EXPECT_EQ(given_back_, 0u);
}

TEST_F(PoolSizeTest, GivesMemoryBackWhileOthersNeedItAndTakesItAgain) {
  Left(64 * kMiB);
  SegmentPool pool(SmallPool(16 * kMiB));
  ASSERT_TRUE(pool.WaitReady(16 * kMiB, Soon()).ok());
  PoolSize size(Elastic(&pool));
  Left(4 * kMiB);
  ASSERT_TRUE(Eventually([&] { return pool.bytes_max() == 12 * kMiB; }));
  Left(8 * kMiB);
  EXPECT_TRUE(Eventually([&] { return given_back_ == 4 * kMiB; }));  // told after the change
  EXPECT_GE(changes_, 1u);
  Left(64 * kMiB);
  EXPECT_TRUE(Eventually([&] { return pool.bytes_max() == 16 * kMiB; }));
  size.SetMost(10 * kMiB);
  EXPECT_TRUE(Eventually([&] { return pool.bytes_max() == 10 * kMiB; }));
}

// It would be cut to whole segments and grow to its bound, in turns.
TEST_F(PoolSizeTest, ABoundThatIsNoWholeHugePagesIsReachedAndKept) {
  Left(64 * kMiB);
  SegmentPool pool(SmallPool(16 * kMiB, 4 * kMiB));
  PoolSize::Options options = Elastic(&pool);
  options.elastic.step_bytes = 4 * kMiB;
  PoolSize size(options);
  size.SetMost(11 * kMiB);
  ASSERT_TRUE(Eventually([&] { return pool.bytes_max() == 10 * kMiB; }));
  EXPECT_FALSE(
      Eventually([&] { return pool.bytes_max() != 10 * kMiB; }, std::chrono::milliseconds(500)));
}

TEST_F(PoolSizeTest, AMachineThatCannotBeReadChangesNothing) {
  SegmentPool pool(SmallPool(16 * kMiB));
  PoolSize size(Elastic(&pool));
  EXPECT_EQ(PoolSize::FirstBytes(Elastic(&pool)), 4 * kMiB);  // careful
  Left(64 * kMiB);
  EXPECT_EQ(PoolSize::FirstBytes(Elastic(&pool)), 16 * kMiB);
  EXPECT_EQ(pool.bytes_max(), 16 * kMiB);
  EXPECT_EQ(changes_, 0u);
}

}  // namespace
}  // namespace ems::server
