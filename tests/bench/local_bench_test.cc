// What must hold: every side is measured at what it offers, round by round, verified; a side that
// returns wrong bytes, loses a value or stores nothing ends the run with its name.
#include "bench/local_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "bench/memcpy_contender.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
constexpr uint64_t kValueBytes = 8192;
constexpr uint64_t kCount = 40;

LocalSettings Tiny() {
  LocalSettings settings;
  settings.rounds = 3;
  settings.read_ring_bytes = settings.put_ring_bytes = 16 * kValueBytes;
  settings.round_bytes = 32 * kValueBytes;
  settings.light_calls = 24;
  settings.batch = 4;
  settings.storm_time = std::chrono::milliseconds(5);
  return settings;
}

// Plain memory that can do everything, and be told to do it wrong.
class FakeContender final : public Contender {
 public:
  enum class Fault { kNone, kWrongByte, kWrongView, kLoses, kStoresNothingAnew };
  explicit FakeContender(Fault fault) : fault_(fault), memory_(kCount * kValueBytes) {}
  const std::string& name() const override { return name_; }
  std::vector<LocalOp> ops() const override {
    return {LocalOp::kGet,    LocalOp::kGetChecked, LocalOp::kGetView,  LocalOp::kExists,
            LocalOp::kLookup, LocalOp::kPut,        LocalOp::kPutBatch, LocalOp::kPutOrdinary};
  }
  LocalOp load_op() const override { return LocalOp::kPut; }
  uint64_t one_sided() const override { return one_sided_; }
  Status Call(LocalOp op, uint32_t /*caller*/, const Stretch& stretch, uint64_t first,
              uint64_t count) override {
    for (uint64_t i = first; i < first + count; ++i) {
      std::byte* const object = memory_.data() + stretch.objects[i] * kValueBytes;
      if (IsPut(op)) {
        const bool stores = fault_ != Fault::kStoresNothingAnew || op == LocalOp::kPut;
        if (stores) std::memcpy(object, stretch.Slot(i).data(), kValueBytes);
      } else if (IsGet(op)) {
        if (fault_ == Fault::kLoses) return Miss();
        std::memcpy(stretch.Slot(i).data(), object, kValueBytes);
        if (fault_ == Fault::kWrongByte) stretch.Slot(i)[kValueBytes - 1] ^= std::byte{1};
      }
      ++one_sided_;
    }
    if (op == LocalOp::kPutBatch) most_ = std::max<uint64_t>(most_, count);
    return OkStatus();
  }
  Status View(uint64_t object, const std::function<void(ConstBytes)>& look) override {
    const uint64_t shown = fault_ == Fault::kWrongView ? (object + 1) % kCount : object;
    look(ConstBytes(memory_).subspan(shown * kValueBytes, kValueBytes));
    return OkStatus();
  }
  uint64_t largest_batch() const { return most_; }

 private:
  const std::string name_ = "EMS";
  const Fault fault_;
  std::vector<std::byte> memory_;
  std::atomic<uint64_t> one_sided_{0}, most_{0};
};

Result<std::vector<LaneResult>> RunWith(FakeContender::Fault fault, uint64_t* largest_batch) {
  const ValueSet values("salt", kValueBytes, kCount);
  std::vector<std::byte> arena(kCount * kValueBytes);
  MemcpyContender plain(CopyWay::kMemcpy, &values, arena);
  FakeContender fake(fault);
  uint64_t rounds = 0;
  EMS_ASSIGN_OR_RETURN(const auto bench,
                       LocalBench::Make(Tiny(), kValueBytes, [&rounds] { ++rounds; }));
  const std::vector<Contender*> both = {&plain, &fake};
  EMS_ASSIGN_OR_RETURN(std::vector<LaneResult> lanes, bench->Run(values, both));
  EXPECT_EQ(rounds, 4U);
  EMS_ASSIGN_OR_RETURN(const StormResult storm, bench->Storm(values, &fake));
  EXPECT_GT(storm.reads_per_second, 0);
  EXPECT_EQ(storm.server_cores, 0);
  *largest_batch = fake.largest_batch();
  return lanes;
}

TEST(LocalBenchTest, MeasuresWhatEachSideOffersForEachNumberOfThreads) {
  uint64_t largest_batch = 0;
  const auto lanes = RunWith(FakeContender::Fault::kNone, &largest_batch);
  ASSERT_TRUE(lanes.ok()) << ToString(lanes.status());
  ASSERT_EQ(lanes->size(), 2U * (2 + 8));
  EXPECT_EQ(largest_batch, 4U);
  for (const LaneResult& lane : *lanes) {
    EXPECT_EQ(lane.rounds.size(), 3U);
    EXPECT_GT(lane.MedianOf(Ops), 0);
    EXPECT_GT(lane.calls.count(), 0U);
    const bool moves = IsGet(lane.op) || IsPut(lane.op);
    EXPECT_EQ(lane.MedianOf(Gbps) > 0, moves) << OpName(lane.op);
    if (moves) {
      EXPECT_EQ(lane.calls.count(), 3 * 32 / lane.batch);
    }
    if (lane.op == LocalOp::kExists) {
      EXPECT_EQ(lane.calls.count(), 3 * 24U);
    }
    if (lane.contender == "EMS" && IsGet(lane.op)) {
      EXPECT_EQ(lane.one_sided_share, 1);
    }
    if (lane.contender == "memcpy") {
      EXPECT_EQ(lane.one_sided_share, 0);
    }
  }
}

TEST(LocalBenchTest, WhateverGoesWrongEndsTheRunWithTheSidesName) {
  struct {
    FakeContender::Fault fault;
    StatusCode code;
  } const cases[] = {{FakeContender::Fault::kWrongByte, StatusCode::kDataLoss},
                     {FakeContender::Fault::kWrongView, StatusCode::kDataLoss},
                     {FakeContender::Fault::kLoses, StatusCode::kNotFound},
                     {FakeContender::Fault::kStoresNothingAnew, StatusCode::kDataLoss}};
  for (const auto& [fault, code] : cases) {
    uint64_t largest_batch = 0;
    const auto lanes = RunWith(fault, &largest_batch);
    EXPECT_EQ(lanes.status().code(), code) << static_cast<int>(fault);
    EXPECT_THAT(std::string(Message(lanes.status())), HasSubstr("EMS, "));
  }
}

}  // namespace
}  // namespace ems::bench
