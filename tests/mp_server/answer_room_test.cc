// What must hold: the first value of an answer has room, and no more than an answer may have; what
// all answers pin together stays below their allowance, and is given back when they go.
#include "mp_server/answer_room.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

constexpr uint64_t kMost = AnswerRoom::kAnswerBytesMax;

TEST(AnswerRoomTest, TheFirstValueHasRoomWhateverItsLength) {
  AnswerRoom room;
  EXPECT_EQ(room.Take(2 * kMost), kMost);
  EXPECT_TRUE(room.none());
  EXPECT_EQ(room.Take(1), std::nullopt);
  room.GiveBack(kMost);
  EXPECT_EQ(room.Take(kMost - 1), kMost - 1);
  EXPECT_EQ(room.Take(2), std::nullopt);
  EXPECT_EQ(room.Take(1), 1U);
}

TEST(AnswerRoomTest, AnAnswerPinsNoMoreThanItMayButOneObject) {
  const auto allowance = std::make_shared<Allowance>();
  AnswerRoom room(Hold(allowance, 64 * kMiB), 10 * kMiB);
  EXPECT_TRUE(room.Pin(20 * kMiB));
  EXPECT_FALSE(room.Pin(1));
  room = AnswerRoom(Hold(allowance, 64 * kMiB), 10 * kMiB);
  EXPECT_TRUE(room.Pin(6 * kMiB));
  EXPECT_FALSE(room.Pin(6 * kMiB));
  EXPECT_TRUE(room.Pin(4 * kMiB));
}

TEST(AnswerRoomTest, AllAnswersTogetherPinUpToTheirAllowance) {
  const auto allowance = std::make_shared<Allowance>();
  const auto answer = [&] { return AnswerRoom(Hold(allowance, kMiB), kMiB); };
  AnswerRoom first = answer();
  for (int i = 0; i < 900; ++i) ASSERT_TRUE(first.Pin(1000)) << i;
  EXPECT_GE(allowance->held_bytes(), 900'000U);
  EXPECT_LE(allowance->held_bytes(), 900'000U + 64 * kKiB);
  AnswerRoom second = answer();
  EXPECT_TRUE(second.Pin(kMiB));
  AnswerRoom third = answer();
  EXPECT_FALSE(third.Pin(1));
  second = AnswerRoom();
  EXPECT_TRUE(third.Pin(1));
  first = AnswerRoom();
  third = AnswerRoom();
  EXPECT_EQ(allowance->held_bytes(), 0U);
}

}  // namespace
}  // namespace ems::server
