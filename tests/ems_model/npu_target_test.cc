// What must hold: blocks that arrive are in HBM where the file says, in any order and from several
// threads; what is not wanted takes none; HBM comes back.
#include "ems_model/npu_target.h"

#include <gtest/gtest.h>

#include <string>

#include "common/thread_pool.h"

namespace ems::model {
namespace {

using std::chrono::seconds;

const std::vector<LoadFile> kFiles = {{.path = "a", .bytes = 300'000, .table = nullptr},
                                      {.path = "empty", .bytes = 0, .table = nullptr},
                                      {.path = "b", .bytes = 70'000, .table = nullptr}};
constexpr uint64_t kBlock = 10'000;

class NpuTargetTest : public ::testing::Test {
 protected:
  NpuTargetTest() {
    auto made = fabric::NpuDevice::Create({.hbm_bytes = kMiB});
    EXPECT_TRUE(made.ok()) << made.status();
    device_ = *std::move(made);
  }
  static std::byte Content(uint32_t file, uint64_t at) {
    return static_cast<std::byte>(at * 7 + file + (at >> 8));
  }
  static void Bring(NpuTarget* target, uint32_t file, uint64_t offset, uint64_t bytes) {
    std::vector<LoadRange> ranges;
    ASSERT_TRUE(target->Place(file, offset, bytes, &ranges).ok());
    ASSERT_EQ(ranges.size(), 1U);
    ASSERT_EQ(ranges[0].into.size(), bytes);
    for (uint64_t i = 0; i < bytes; ++i) ranges[0].into[i] = Content(file, offset + i);
    EXPECT_EQ(target->Arrived(file, offset, bytes), OkStatus());
  }
  void ExpectFile(const NpuTarget& target, uint32_t file) {
    const auto there = target.file(kFiles[file].path);
    ASSERT_TRUE(there.ok()) << there.status();
    ASSERT_EQ(there->bytes, kFiles[file].bytes);
    std::vector<std::byte> out(there->bytes);
    fabric::NpuStream stream(device_.get());
    ASSERT_TRUE(stream.CopyOut(out, there->at).ok());
    ASSERT_TRUE(stream.Synchronize(seconds(20)));
    for (uint64_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], Content(file, i)) << i;
  }
  std::unique_ptr<fabric::NpuDevice> device_;
};

TEST_F(NpuTargetTest, BlocksFromSeveralThreadsAreInHbm) {
  NpuTarget target(device_.get());
  ASSERT_EQ(target.Begin(kFiles), OkStatus());
  {
    std::vector<Thread> threads;
    for (uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back("load", [&target, t] {
        for (uint64_t at = t * kBlock; at < 300'000; at += 3 * kBlock)
          Bring(&target, 0, at, kBlock);
      });
    }
  }
  Bring(&target, 2, 0, 70'000);
  ASSERT_EQ(target.End(OkStatus()), OkStatus());
  ExpectFile(target, 0);
  ExpectFile(target, 2);
  EXPECT_EQ(target.file("empty")->bytes, 0U);
}

TEST_F(NpuTargetTest, WhatIsNotWantedTakesNothingAndAllComesBack) {
  const uint64_t before = device_->free_bytes();
  {
    NpuTarget target(device_.get(), {.choose = [](std::string_view path) { return path == "b"; }});
    ASSERT_EQ(target.Begin(kFiles), OkStatus());
    EXPECT_EQ(target.Wants(0, 0, kBlock), 0U);
    EXPECT_EQ(target.Wants(2, 0, kBlock), kBlock);
    EXPECT_LT(before - device_->free_bytes(), 71'000U);
    ASSERT_EQ(target.End(OkStatus()), OkStatus());
    EXPECT_EQ(target.file("a").status().code(), StatusCode::kNotFound);
  }
  EXPECT_EQ(device_->free_bytes(), before);
}

TEST_F(NpuTargetTest, AFailedLoadShowsNothingAndGivesItsHbmBack) {
  const uint64_t before = device_->free_bytes();
  NpuTarget target(device_.get());
  ASSERT_EQ(target.Begin(kFiles), OkStatus());
  Bring(&target, 0, 0, kBlock);
  ASSERT_EQ(target.End(Error(StatusCode::kCancelled, "x")), OkStatus());
  EXPECT_EQ(target.file("a").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(device_->free_bytes(), before);
}

TEST_F(NpuTargetTest, TooLittleHbmIsToldWithTheFile) {
  const std::vector<LoadFile> large = {{.path = "huge", .bytes = 2 * kMiB, .table = nullptr}};
  NpuTarget target(device_.get());
  const Status status = target.Begin(large);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(status).find("huge"), std::string_view::npos);
}

}  // namespace
}  // namespace ems::model
