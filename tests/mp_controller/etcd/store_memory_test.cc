#include "mp_controller/etcd/store_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using ::testing::HasSubstr;
using Kind = StoreMemory::Rows;

std::unique_ptr<StoreMemory> Remember(const TempDir& dir) {
  auto memory = StoreMemory::Open(dir.path());
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.ok() ? std::move(*memory) : nullptr;
}

TEST(StoreMemoryTest, FewerChangesThanBeforeAreRefusedAfterARestart) {
  TempDir dir;
  EXPECT_EQ(Remember(dir)->CheckChanges(Kind::kCluster, 0), OkStatus());
  Remember(dir)->Note(Kind::kCluster, 7);
  Remember(dir)->Note(Kind::kCluster, 6);
  const auto memory = Remember(dir);
  EXPECT_EQ(memory->CheckChanges(Kind::kCluster, 7), OkStatus());
  EXPECT_EQ(memory->CheckChanges(Kind::kCluster, 9), OkStatus());
  EXPECT_EQ(memory->CheckChanges(Kind::kModels, 0), OkStatus());
  for (const uint64_t fewer : {uint64_t{0}, uint64_t{6}}) {
    const Status status = memory->CheckChanges(Kind::kCluster, fewer);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(Message(status), HasSubstr("etcd was emptied"));
  }
}

TEST(StoreMemoryTest, AnotherClusterIsRefusedByNameAfterARestart) {
  TempDir dir;
  EXPECT_FALSE(StoreMemory::IsIn(dir.path()));
  EXPECT_EQ(Remember(dir)->CheckCluster(kNoCluster), OkStatus());
  EXPECT_FALSE(StoreMemory::IsIn(dir.path()));
  EXPECT_EQ(Remember(dir)->CheckCluster(ClusterId(0xabc)), OkStatus());
  EXPECT_TRUE(StoreMemory::IsIn(dir.path()));
  const auto memory = Remember(dir);
  EXPECT_EQ(memory->CheckCluster(ClusterId(0xabc)), OkStatus());
  const Status other = memory->CheckCluster(ClusterId(0xdef));
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(other), HasSubstr("0000000000000abc"));
  EXPECT_THAT(Message(other), HasSubstr("0000000000000def"));
}

TEST(StoreMemoryTest, AFolderOfAControllerWithoutEtcdIsRefused) {
  TempDir dir;
  std::ofstream(dir.path() + "/EMS_CONTROLLER_STORE") << "format 3\n";
  EXPECT_EQ(StoreMemory::Open(dir.path()).status().code(), StatusCode::kFailedPrecondition);
}

TEST(StoreMemoryTest, ADamagedMemoryIsNoMemoryOfNothing) {
  TempDir dir;
  std::ofstream(dir.path() + "/ETCD_STORE") << "clus";
  EXPECT_EQ(StoreMemory::Open(dir.path()).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ems::controller
