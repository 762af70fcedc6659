// What must hold: a link carries its rate and no more for all users together; transfers by turns
// share it equally; time that was slept too long is not lost; the same questions have the same
// answers.
#include "fabric/emulated/emulated_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/sleep.h"
#include "common/thread_pool.h"

namespace ems::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};
constexpr uint64_t kMb = 1'000'000;

TEST(EmulatedLinkTest, PiecesPassOneAfterTheOther) {
  EmulatedLink link(kMb);  // a byte a microsecond
  EXPECT_EQ(link.Reserve(1000, kStart), kStart + milliseconds(1));
  EXPECT_EQ(link.Reserve(2000, kStart), kStart + milliseconds(3));
  EXPECT_EQ(link.Reserve(1000, kStart + seconds(1)), kStart + milliseconds(1001))
      << "after a pause";
  EXPECT_EQ(link.bytes_carried(), 4000U);
}

TEST(EmulatedLinkTest, RoundingDoesNotAddUp) {
  EmulatedLink link(147'000'000'000);  // 27.86 ns for 4 KiB
  TimePoint end{};
  for (int i = 0; i < 100'000; ++i) end = link.Reserve(4096, kStart);
  const double exact = 100'000.0 * 4096 / 147;
  EXPECT_NEAR(static_cast<double>((end - kStart).count()), exact, 2);
}

TEST(EmulatedLinkTest, ATinyRateAndAHugePieceDoNotOverflow) {
  EmulatedLink link(1);
  EXPECT_GT(link.Reserve(~uint64_t{0}, kStart), kStart + std::chrono::hours(23));
  EXPECT_GT(link.Reserve(~uint64_t{0}, kStart), kStart + std::chrono::hours(46));
}

TEST(EmulatedPathTest, TheSlowestLinkSaysHowFastItGoes) {
  EmulatedLink wide(100 * kMb), narrow(10 * kMb);
  const EmulatedPath path({&wide, &narrow}, microseconds(7));
  EXPECT_EQ(path.bytes_per_s(), 10 * kMb);
  EXPECT_EQ(path.TimeOf(100'000), milliseconds(10) + microseconds(7));
  EXPECT_EQ(path.piece_bytes(), 4096U) << "at least a page";
  EmulatedLink fast(100'000 * kMb);
  EXPECT_EQ(EmulatedPath({&fast}, {}).piece_bytes(), kMiB);
  EXPECT_EQ(EmulatedPath().TimeOf(kGiB), Duration::zero()) << "nothing is paced";
}

TEST(EmulatedTransferTest, ArrivesTheLatencyAfterItHasLeft) {
  EmulatedLink link(kMb);
  const EmulatedPath path({&link}, milliseconds(5));
  EmulatedTransfer transfer(&path, kStart);
  EXPECT_EQ(transfer.Add(1000), kStart + milliseconds(1));
  EXPECT_EQ(transfer.Add(1000), kStart + milliseconds(2)) << "no latency between pieces";
  EXPECT_EQ(transfer.arrival(), kStart + milliseconds(7));
}

TEST(EmulatedTransferTest, TransfersByTurnsShareALink) {
  EmulatedLink shared(kMb), own_a(10 * kMb), own_b(10 * kMb);
  const EmulatedPath path_a({&own_a, &shared}, {}), path_b({&own_b, &shared}, {});
  EmulatedTransfer a(&path_a, kStart), b(&path_b, kStart);
  for (int i = 0; i < 1000; ++i) {
    a.Add(100);
    b.Add(100);
  }
  EXPECT_EQ(b.due() - kStart, milliseconds(200)) << "200 kB at 1 MB/s";
  EXPECT_EQ(b.due() - a.due(), microseconds(100)) << "one piece apart";
}

TEST(EmulatedTransferTest, ASlowPeerLeavesASharedLinkToOthers) {
  EmulatedLink shared(10 * kMb), slow(kMb);
  const EmulatedPath path_a({&shared, &slow}, {}), path_b({&shared}, {});
  EmulatedTransfer a(&path_a, kStart), b(&path_b, kStart);
  // In the order of time, as threads that sleep would ask.
  while (b.due() < kStart + milliseconds(100)) {
    if (a.due() <= b.due()) {
      a.Add(1000);
    } else {
      b.Add(1000);
    }
  }
  const double share = static_cast<double>(shared.bytes_carried() - slow.bytes_carried());
  EXPECT_NEAR(share, 900'000, 20'000) << "all but what the slow one can take";
}

// Real threads over a real clock: whatever the machine makes of their sleeps, the link is never
// faster than its rate, and all get through it.
TEST(EmulatedTransferTest, ThreadsCannotExceedTheRate) {
  constexpr int kThreads = 4;
  constexpr uint64_t kPiece = 20'000;
  constexpr int kPieces = 25;
  EmulatedLink link(20 * kMb);  // 2 MB take 100 ms
  const EmulatedPath path({&link}, microseconds(50));
  const TimePoint start = Clock::System().Now();
  std::vector<TimePoint> dues(kThreads);
  {
    std::vector<Thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("transfer", [&, t] {
        EmulatedTransfer transfer(&path, start);
        for (int i = 0; i < kPieces; ++i) SleepUntil(transfer.Add(kPiece));
        dues[static_cast<size_t>(t)] = transfer.due();
      });
    }
  }
  EXPECT_GE(Clock::System().Now() - start, milliseconds(100));
  EXPECT_EQ(link.bytes_carried(), kThreads * kPieces * kPiece);
  const TimePoint last = *std::max_element(dues.begin(), dues.end());
  EXPECT_GE(last - start, milliseconds(100));
}

}  // namespace
}  // namespace ems::fabric
