// What must hold: an instance loads what the source has, byte for byte, keeps what its strategy
// says, and tells why it could not load.
#include "bench/model/model_instance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <memory>
#include <string>

#include "bench/harness/scratch_folder.h"
#include "bench/model/model_files.h"
#include "bench/model/paced_source.h"
#include "common/bytes.h"
#include "tests/support/paths.h"

namespace ems::bench {
namespace {

class ModelInstanceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto folder = ScratchFolder::Make();
    ASSERT_TRUE(folder.ok()) << ToString(folder.status());
    folder_ = std::move(*folder);
    auto made = MakeModel(folder_->path(), 8 * kMiB, 1);
    ASSERT_TRUE(made.ok()) << ToString(made.status());
    made_ = *made;
    auto source = PacedSource::Start(folder_->path(), 0);
    ASSERT_TRUE(source.ok()) << ToString(source.status());
    source_ = std::move(*source);
  }

  static std::unique_ptr<ModelInstance> Start(ModelStrategy strategy) {
    auto instance = ModelInstance::Start(ems::testing::BinDir() + "/ems-bench", strategy,
                                         "127.0.0.1:1", "none");
    EXPECT_TRUE(instance.ok()) << ToString(instance.status());
    return instance.ok() ? std::move(*instance) : nullptr;
  }
  Result<InstanceLoad> Load(ModelInstance* instance, const std::string& version) const {
    EMS_RETURN_IF_ERROR(instance->Begin(version, source_->url(), made_.bytes));
    return instance->End();
  }

  std::unique_ptr<ScratchFolder> folder_;
  MadeModel made_;
  std::unique_ptr<PacedSource> source_;
};

TEST_F(ModelInstanceTest, WithoutACacheEachLoadReadsTheSource) {
  const auto instance = Start(ModelStrategy::kNoCache);
  ASSERT_NE(instance, nullptr);
  for (int i = 0; i < 2; ++i) {
    const uint64_t sent = source_->bytes_sent();
    const auto load = Load(instance.get(), "v1");
    ASSERT_TRUE(load.ok()) << ToString(load.status());
    EXPECT_EQ(load->bytes, made_.bytes);
    EXPECT_EQ(load->hash, made_.hash);
    EXPECT_FALSE(load->hit);
    EXPECT_GT(load->seconds, 0);
    EXPECT_GT(load->cpu_seconds, 0);
    EXPECT_GE(source_->bytes_sent() - sent, made_.bytes);
  }
}

TEST_F(ModelInstanceTest, LocalDramKeepsTheLastModelAlone) {
  const auto instance = Start(ModelStrategy::kLocalDram);
  ASSERT_NE(instance, nullptr);
  for (const auto& [version, hit] : {std::pair("v1", false), std::pair("v1", true),
                                     std::pair("v2", false), std::pair("v1", false)}) {
    const uint64_t sent = source_->bytes_sent();
    const auto load = Load(instance.get(), version);
    ASSERT_TRUE(load.ok()) << ToString(load.status());
    EXPECT_EQ(load->hash, made_.hash);
    EXPECT_EQ(load->hit, hit) << version;
    EXPECT_EQ(source_->bytes_sent() == sent, hit) << version;
  }
}

TEST_F(ModelInstanceTest, WhatCannotBeLoadedSaysWhyAndTheInstanceGoesOn) {
  const auto instance = Start(ModelStrategy::kNoCache);
  ASSERT_NE(instance, nullptr);
  ASSERT_TRUE(instance->Begin("v1", "http://127.0.0.1:1/", made_.bytes).ok());
  const auto refused = instance->End();
  EXPECT_EQ(refused.status().code(), StatusCode::kInternal);
  EXPECT_THAT(ToString(refused.status()), ::testing::HasSubstr("127.0.0.1:1"));
  ASSERT_TRUE(instance->Begin("v1", source_->url(), made_.bytes / 2).ok());
  EXPECT_THAT(ToString(instance->End().status()), ::testing::HasSubstr("larger than announced"));
  EXPECT_TRUE(Load(instance.get(), "v1").ok());
  EXPECT_GT(instance->Copy(kMiB).value_or(0), 0);
}

TEST_F(ModelInstanceTest, OneThatIsKilledIsAnErrorAndNoneIsLeft) {
  auto instance = Start(ModelStrategy::kNoCache);
  ASSERT_NE(instance, nullptr);
  const pid_t pid = instance->pid();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(Load(instance.get(), "v1").status().code(), StatusCode::kInternal);
  instance.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ModelStrategyTest, StrategiesHaveTheirNamesAndOthersAreRefused) {
  EXPECT_EQ(StrategyName(ModelStrategy::kNoCache), "no-cache");
  EXPECT_EQ(StrategyName(ModelStrategy::kLocalDram), "local-dram");
  EXPECT_EQ(StrategyName(ModelStrategy::kEms), "ems");
  EXPECT_EQ(RunModelInstance("other", "", ""), 2);
}

}  // namespace
}  // namespace ems::bench
