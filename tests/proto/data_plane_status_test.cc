// What must hold: each status of the wire has a name of its own and tells the caller one thing; a
// request says how long, or until when, it is wanted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/data_plane.h"

namespace ems::wire {
namespace {

TEST(WireStatusTest, EachStatusHasACodeForTheCaller) {
  const std::vector<std::pair<WireStatus, StatusCode>> table = {
      {WireStatus::kOk, StatusCode::kOk},
      {WireStatus::kMiss, StatusCode::kNotFound},
      {WireStatus::kAlreadyExists, StatusCode::kAlreadyExists},
      {WireStatus::kWrongOwner, StatusCode::kFailedPrecondition},
      {WireStatus::kStaleNamespace, StatusCode::kFailedPrecondition},
      {WireStatus::kRetryLater, StatusCode::kResourceExhausted},
      {WireStatus::kQuotaExceeded, StatusCode::kResourceExhausted},
      {WireStatus::kTooLarge, StatusCode::kOutOfRange},
      {WireStatus::kInvalid, StatusCode::kInvalidArgument},
      {WireStatus::kFenced, StatusCode::kUnavailable},
      {WireStatus::kChecksumMismatch, StatusCode::kDataLoss},
      {WireStatus::kUnimplemented, StatusCode::kUnimplemented},
      {WireStatus::kVersion, StatusCode::kFailedPrecondition},
      {WireStatus::kOutOfRange, StatusCode::kOutOfRange},
      {WireStatus::kDeadline, StatusCode::kDeadlineExceeded},
      {WireStatus::kInternal, StatusCode::kInternal},
      {WireStatus::kBatchFull, StatusCode::kResourceExhausted},
      {WireStatus::kNotDurable, StatusCode::kAborted},
      {WireStatus::kCopyMiss, StatusCode::kUnavailable},
  };
  ASSERT_EQ(table.size(), kWireStatusMax + 1U);
  std::set<std::string_view> names;
  for (const auto& [wire, code] : table) {
    EXPECT_EQ(ToStatus(wire, "why").code(), code) << StatusName(wire);
    names.insert(StatusName(wire));
    EXPECT_FALSE(StatusName(wire).empty());
  }
  EXPECT_EQ(names.size(), table.size()) << "names tell them apart";
}

TEST(WireStatusTest, AMissHasNoTextAndOthersCarryTheirs) {
  EXPECT_TRUE(Message(ToStatus(WireStatus::kMiss, "text")).empty());
  EXPECT_THAT(std::string(Message(ToStatus(WireStatus::kTooLarge, "65 MiB"))),
              ::testing::HasSubstr("65 MiB"));
  EXPECT_FALSE(Message(ToStatus(WireStatus::kFenced, "")).empty());
}

TEST(WireStatusTest, OpsHaveNames) {
  EXPECT_EQ(OpName(Op::kGet), "Get");
  EXPECT_EQ(OpName(static_cast<Op>(77)), "op 77");
}

TEST(WireTimeTest, ARequestIsWantedForATimeOrUntilAMomentOfTheServersClock) {
  using std::chrono::milliseconds;
  const TimePoint now = TimePoint(std::chrono::hours(24 * 200)) + milliseconds(5);
  FrameHeader request;
  EXPECT_EQ(TimeLeft(request, now), Duration::zero());
  EXPECT_EQ(WantedUntil(request, now), TimePoint::max());
  request.deadline_ms = 250;
  EXPECT_EQ(TimeLeft(request, now), milliseconds(250));
  EXPECT_EQ(WantedUntil(request, now), TimePoint::max()) << "since when is not told";
  request.flags = kFlagUntil;
  request.deadline_ms = ClockMs(now) + 250;
  EXPECT_EQ(TimeLeft(request, now), milliseconds(250));
  EXPECT_EQ(WantedUntil(request, now), now + milliseconds(250));
  EXPECT_EQ(WantedUntil(request, now + std::chrono::microseconds(900)), now + milliseconds(250));
  EXPECT_EQ(TimeLeft(request, now + milliseconds(250)), Duration::zero());
  EXPECT_EQ(WantedUntil(request, now + milliseconds(900)), now + milliseconds(900)) << "is over";
}

// The clock of the wire starts again every 49 days.
TEST(WireTimeTest, AMomentBeyondTheEndOfTheClockIsInTheFuture) {
  using std::chrono::milliseconds;
  const TimePoint end(milliseconds(int64_t{1} << 32));
  FrameHeader request;
  request.flags = kFlagUntil;
  request.deadline_ms = ClockMs(end - milliseconds(10)) + 30;
  EXPECT_EQ(request.deadline_ms, 20U);
  EXPECT_EQ(TimeLeft(request, end - milliseconds(10)), milliseconds(30));
  EXPECT_EQ(TimeLeft(request, end + milliseconds(21)), Duration::zero());
}

}  // namespace
}  // namespace ems::wire
