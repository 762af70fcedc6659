// What must hold: everything that is stored is read, pass after pass, at the rate that was asked
// for; what has gone meanwhile is left alone; and the end waits for nothing but the read under way.
#include "mp_server/ssd/scrubber.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/mp_server/ssd/ssd_fixture.h"
#include "tests/support/eventually.h"

namespace ems::ssd {
namespace {

using ::ems::testing::kPatience;
using ::ems::testing::NameOf;

class ScrubberTest : public ::testing::Test {
 protected:
  void Store(const std::string& key, uint64_t bytes, uint64_t sequence) {
    Row row;
    row.sequence = sequence;
    row.region_sequence = 1;
    row.value_bytes = bytes;
    row.key_bytes = static_cast<uint32_t>(key.size());
    index_.Load(NameOf(key), row);
  }
  Scrubber::Options Options(uint64_t bytes_per_s) {
    Scrubber::Options options;
    options.index = &index_;
    options.bytes_per_s = bytes_per_s;
    options.pass_at_least = Duration::zero();
    options.read = [this](const ObjectName& name, const Row& row, const ReadTarget& target,
                          const std::function<void(ReadOutcome)>& done) {
      if (refuse_.load()) {
        ++refused_;
        return false;
      }
      EXPECT_EQ(target.value.size(), row.value_bytes);
      EXPECT_EQ(target.piece_sums.size(), PieceCount(row.value_bytes));
      std::ranges::fill(target.value, std::byte{1});
      {
        auto reads = reads_.Lock();
        ++(*reads)[name.hash.lo];
      }
      done(ReadOutcome::kOk);
      return true;
    };
    return options;
  }
  static bool WaitForPasses(const Scrubber& scrubber, uint64_t passes) {
    return ems::testing::Eventually([&] { return scrubber.stats().passes >= passes; });
  }
  uint64_t ReadsOf(const std::string& key) {
    auto reads = reads_.Lock();
    return (*reads)[NameOf(key).hash.lo];
  }

  SsdIndex index_;
  std::atomic<bool> refuse_{false};
  std::atomic<int> refused_{0};
  Guarded<std::map<uint64_t, uint64_t>> reads_;
};

TEST_F(ScrubberTest, EachPassReadsEverythingOnce) {
  for (uint64_t i = 1; i <= 300; ++i) Store(std::to_string(i), i * 100, i);
  Store("nothing", 0, 301);
  Store("large", 3 * kMiB + 1, 302);
  Scrubber::Options options = Options(kGiB);
  options.pass_at_least = std::chrono::hours(1);
  const Scrubber scrubber(options);
  ASSERT_TRUE(WaitForPasses(scrubber, 1));
  for (uint64_t i = 1; i <= 300; ++i) EXPECT_EQ(ReadsOf(std::to_string(i)), 1U) << i;
  EXPECT_EQ(ReadsOf("nothing"), 1U);
  EXPECT_EQ(ReadsOf("large"), 1U);
  EXPECT_EQ(scrubber.stats().objects, 302U);
  EXPECT_EQ(scrubber.stats().bytes, uint64_t{300} * 301 / 2 * 100 + 3 * kMiB + 1);
}

TEST_F(ScrubberTest, PassesFollowEachOther) {
  Store("a", 100, 1);
  const Scrubber scrubber(Options(kGiB));
  ASSERT_TRUE(WaitForPasses(scrubber, 3));
  EXPECT_GE(ReadsOf("a"), 3U);
}

TEST_F(ScrubberTest, WhatIsReplacedBeforeItsTurnIsNotRead) {
  for (uint64_t i = 1; i <= 50; ++i) Store(std::to_string(i), 100, i);
  Scrubber::Options options = Options(kGiB);
  options.pass_at_least = std::chrono::hours(1);
  // The first read of all drops everything else.
  options.read = [this, read = options.read](const ObjectName& name, const Row& row,
                                             const ReadTarget& target,
                                             std::function<void(ReadOutcome)> done) {
    std::vector<OwedDelete> owed;
    index_.DropIf([&](const ObjectName& other, const Row&) { return !(other == name); }, &owed);
    return read(name, row, target, std::move(done));
  };
  const Scrubber scrubber(options);
  ASSERT_TRUE(WaitForPasses(scrubber, 1));
  EXPECT_EQ(scrubber.stats().objects, 1U);
}

TEST_F(ScrubberTest, TheRateHolds) {
  for (uint64_t i = 1; i <= 40; ++i) Store(std::to_string(i), 64 * kKiB, i);
  const TimePoint began = Clock::System().Now();
  Scrubber::Options options = Options(10 * kMiB);  // 2.5 MiB of values: a quarter of a second
  options.pass_at_least = std::chrono::hours(1);
  const Scrubber scrubber(options);
  ASSERT_TRUE(WaitForPasses(scrubber, 1));
  EXPECT_GE(Clock::System().Now() - began, std::chrono::milliseconds(225));
}

TEST_F(ScrubberTest, ADiskThatTakesNoReadsIsAskedAgainLater) {
  refuse_.store(true);
  Store("a", 100, 1);
  const Scrubber scrubber(Options(kGiB));
  ASSERT_TRUE(ems::testing::Eventually([&] { return refused_ >= 1; }));
  EXPECT_EQ(scrubber.stats().objects, 0U);
  refuse_.store(false);
  ASSERT_TRUE(WaitForPasses(scrubber, 2));
  EXPECT_GE(ReadsOf("a"), 1U);
}

TEST_F(ScrubberTest, AReadThatFailsIsTriedAgainAndCountsForNothing) {
  Store("a", 100, 1);
  Scrubber::Options options = Options(kGiB);
  std::atomic<int> reads{0};
  options.read = [&reads, read = options.read](const ObjectName& name, const Row& row,
                                               const ReadTarget& target,
                                               const std::function<void(ReadOutcome)>& done) {
    if (reads.fetch_add(1) > 0) return read(name, row, target, done);
    done(ReadOutcome::kFailed);
    return true;
  };
  options.pass_at_least = std::chrono::hours(1);
  const Scrubber scrubber(options);
  ASSERT_TRUE(WaitForPasses(scrubber, 1));
  EXPECT_EQ(reads.load(), 2);
  EXPECT_EQ(scrubber.stats().objects, 1U);
}

TEST_F(ScrubberTest, TheEndDoesNotWaitForThePass) {
  for (uint64_t i = 1; i <= 1000; ++i) Store(std::to_string(i), kMiB, i);
  const TimePoint began = Clock::System().Now();
  { const Scrubber scrubber(Options(kMiB)); }
  EXPECT_LT(Clock::System().Now() - began, kPatience);
}

}  // namespace
}  // namespace ems::ssd
