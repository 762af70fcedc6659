// What must hold: every side is measured at what it offers, round by round, verified; a side that
// returns wrong bytes, loses a value or stores nothing ends the run with its name.
#include "bench/sides/side_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "bench/local/memcpy_subject.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
constexpr uint64_t kValueBytes = 8192;
constexpr uint64_t kCount = 40;

SideSettings Tiny() {
  SideSettings settings;
  settings.rounds = 3;
  settings.read_ring_bytes = settings.put_ring_bytes = 16 * kValueBytes;
  settings.round_bytes = 32 * kValueBytes;
  settings.light_calls = 24;
  settings.batch = 4;
  settings.storm_time = std::chrono::milliseconds(5);
  return settings;
}

// Plain memory that can do everything, and be told to do it wrong.
class FakeSubject final : public Subject {
 public:
  enum class Fault { kNone, kWrongByte, kWrongView, kLoses, kStoresNothingAnew };
  explicit FakeSubject(Fault fault) : fault_(fault), memory_(kCount * kValueBytes) {}
  const std::string& name() const override { return name_; }
  std::vector<SideOp> ops() const override {
    return {SideOp::kGet,    SideOp::kGetChecked, SideOp::kGetView,  SideOp::kExists,
            SideOp::kLookup, SideOp::kPut,        SideOp::kPutBatch, SideOp::kPutOrdinary};
  }
  SideOp load_op() const override { return SideOp::kPut; }
  uint64_t one_sided() const override { return one_sided_; }
  Status Call(SideOp op, uint32_t /*caller*/, const Stretch& stretch, uint64_t first,
              uint64_t count) override {
    for (uint64_t i = first; i < first + count; ++i) {
      std::byte* const object = memory_.data() + stretch.objects[i] * kValueBytes;
      if (IsPut(op)) {
        const bool stores = fault_ != Fault::kStoresNothingAnew || op == SideOp::kPut;
        if (stores) std::memcpy(object, stretch.Buffer(i).data(), kValueBytes);
      } else if (IsGet(op)) {
        if (fault_ == Fault::kLoses) return Miss();
        std::memcpy(stretch.Buffer(i).data(), object, kValueBytes);
        if (fault_ == Fault::kWrongByte) stretch.Buffer(i)[kValueBytes - 1] ^= std::byte{1};
      }
      ++one_sided_;
    }
    if (op == SideOp::kPutBatch) most_ = std::max<uint64_t>(most_, count);
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

Result<std::vector<TrialResult>> RunWith(FakeSubject::Fault fault, uint64_t* largest_batch) {
  const ValueSet values("salt", kValueBytes, kCount);
  std::vector<std::byte> arena(kCount * kValueBytes);
  MemcpySubject plain(CopyWay::kMemcpy, &values, arena);
  FakeSubject fake(fault);
  uint64_t rounds = 0;
  EMS_ASSIGN_OR_RETURN(const auto bench,
                       SideBench::Make(Tiny(), kValueBytes, [&rounds] { ++rounds; }));
  const std::vector<Subject*> both = {&plain, &fake};
  EMS_ASSIGN_OR_RETURN(std::vector<TrialResult> trials, bench->Run(values, both));
  EXPECT_EQ(rounds, 4U);
  EMS_ASSIGN_OR_RETURN(const StormResult storm, bench->Storm(values, &fake));
  EXPECT_GT(storm.reads_per_second, 0);
  EXPECT_EQ(storm.server_cores, 0);
  *largest_batch = fake.largest_batch();
  return trials;
}

TEST(SideBenchTest, MeasuresWhatEachSideOffersForEachNumberOfThreads) {
  uint64_t largest_batch = 0;
  const auto trials = RunWith(FakeSubject::Fault::kNone, &largest_batch);
  ASSERT_TRUE(trials.ok()) << ToString(trials.status());
  ASSERT_EQ(trials->size(), 2U * (2 + 8));
  EXPECT_EQ(largest_batch, 4U);
  for (const TrialResult& trial : *trials) {
    EXPECT_EQ(trial.rounds.size(), 3U);
    EXPECT_GT(trial.MedianOf(Ops), 0);
    EXPECT_GT(trial.calls.count(), 0U);
    const bool moves = IsGet(trial.op) || IsPut(trial.op);
    EXPECT_EQ(trial.MedianOf(Gbps) > 0, moves) << OpName(trial.op);
    if (moves) {
      EXPECT_EQ(trial.calls.count(), 3 * 32 / trial.batch);
    }
    if (trial.op == SideOp::kExists) {
      EXPECT_EQ(trial.calls.count(), 3 * 24U);
    }
    if (trial.subject == "EMS" && IsGet(trial.op)) {
      EXPECT_EQ(trial.one_sided_share, 1);
    }
    if (trial.subject == "memcpy") {
      EXPECT_EQ(trial.one_sided_share, 0);
    }
  }
}

TEST(SideBenchTest, WhateverGoesWrongEndsTheRunWithTheSidesName) {
  struct {
    FakeSubject::Fault fault;
    StatusCode code;
  } const cases[] = {{FakeSubject::Fault::kWrongByte, StatusCode::kDataLoss},
                     {FakeSubject::Fault::kWrongView, StatusCode::kDataLoss},
                     {FakeSubject::Fault::kLoses, StatusCode::kNotFound},
                     {FakeSubject::Fault::kStoresNothingAnew, StatusCode::kDataLoss}};
  for (const auto& [fault, code] : cases) {
    uint64_t largest_batch = 0;
    const auto trials = RunWith(fault, &largest_batch);
    EXPECT_EQ(trials.status().code(), code) << static_cast<int>(fault);
    EXPECT_THAT(std::string(Message(trials.status())), HasSubstr("EMS, "));
  }
}

}  // namespace
}  // namespace ems::bench
