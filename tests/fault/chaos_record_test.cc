// What must hold: the record of a key finds each read that no order of the calls explains, and no
// other. Calls are written as when they began and ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fault/chaos/key_record.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TimePoint At(int at_s) { return TimePoint(std::chrono::seconds(at_s)); }
TimedCall From(int begun, int ended) { return {At(begun), At(ended), "a client"}; }

class ChaosRecordTest : public ::testing::Test {
 protected:
  void Put(uint64_t id, int begun, int ended, PutOutcome outcome = PutOutcome::kDone) {
    record_.BeginPut(id, At(begun));
    record_.EndPut(id, From(begun, ended), outcome);
  }
  void Read(uint64_t id, int begun, int ended) { record_.OnRead(id, From(begun, ended)); }
  void Remove(int begun, int ended) { record_.OnRemove(From(begun, ended)); }
  std::vector<std::string> Check() { return record_.Check(At(0)); }

  KeyRecord record_;
};

TEST_F(ChaosRecordTest, TheLastValueIsRead) {
  Put(1, 1, 2);
  Read(1, 3, 4);
  Put(2, 5, 6);
  Read(2, 7, 8);
  EXPECT_THAT(Check(), IsEmpty());
  Read(2, 9, 10);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(ChaosRecordTest, AnOldValueAfterANewerOneWasAcknowledged) {
  Put(1, 1, 2);
  Put(2, 3, 4);
  Read(1, 5, 6);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 1 was there from 2.000 to 5.000 s (a client), "
                                             "but put 2 was made at some moment from 3.000")));
}

TEST_F(ChaosRecordTest, AnOldValueInALaterRound) {
  Put(1, 1, 2);
  Put(2, 3, 4);
  EXPECT_THAT(Check(), IsEmpty());
  Read(1, 5, 6);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 1 was read")));
}

TEST_F(ChaosRecordTest, AValueThatNobodyPut) {
  Put(1, 1, 2);
  Read(7, 3, 4);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 7 was read from 3.000 to 4.000 s (a client): "
                                             "nobody made it")));
}

// Of the right put id: the bytes themselves say so, before anything is recorded.
TEST_F(ChaosRecordTest, AValueOfAnotherKey) {
  const std::string value = MakeValue("default", "key-1", 5, 100);
  EXPECT_EQ(VerifyValue("default", "key-1", value), 5u);
  EXPECT_EQ(VerifyValue("default", "key-2", value), std::nullopt);
}

TEST_F(ChaosRecordTest, ResurrectionAfterARemove) {
  Put(1, 1, 2);
  Remove(3, 4);
  Read(1, 5, 6);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("but a Remove was made at some moment from 3.000")));
}

TEST_F(ChaosRecordTest, ResurrectionAfterARemoveInALaterRound) {
  Put(1, 1, 2);
  Remove(3, 4);
  EXPECT_THAT(Check(), IsEmpty());
  Read(1, 5, 6);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 1 was read")));
}

TEST_F(ChaosRecordTest, CallsThatOverlapHaveAnyOrder) {
  Put(1, 1, 2);
  Put(2, 3, 8);
  Read(1, 4, 5);
  Read(2, 6, 7);
  Remove(6, 9);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(ChaosRecordTest, ButReadersAgreeOnIt) {
  Put(1, 1, 2);
  Put(2, 3, 9);
  Read(2, 4, 5);
  Read(1, 6, 7);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 1 was there")));
}

TEST_F(ChaosRecordTest, TwoValuesThatTakeTurns) {
  Put(1, 1, 9);
  Put(2, 1, 9);
  Read(1, 2, 3);
  Read(2, 4, 5);
  Read(1, 6, 7);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("but put 2")));
}

TEST_F(ChaosRecordTest, APutOfUnknownOutcomeTakesEffectInTimeOrNever) {
  Put(1, 1, 2);
  Put(2, 3, 20, PutOutcome::kUnknown);
  Put(3, 5, 6);
  Read(3, 7, 8);
  EXPECT_THAT(Check(), IsEmpty());
  Read(2, 9, 10);
  Read(2, 21, 22);
  EXPECT_THAT(Check(), IsEmpty());
  Put(4, 30, 31, PutOutcome::kUnknown);
  EXPECT_THAT(Check(), IsEmpty());
  Put(5, 40, 41);
  Read(4, 42, 43);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 4 was there from 31.000 to 42.000")));
}

TEST_F(ChaosRecordTest, APutOfUnknownOutcomeTakesEffectOnce) {
  Put(1, 1, 20, PutOutcome::kUnknown);
  Read(1, 2, 3);
  Put(2, 4, 5);
  Read(1, 6, 7);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 1 was there from 3.000 to 6.000")));
}

TEST_F(ChaosRecordTest, AnUnknownOneThatNobodySeesReplacesNothing) {
  Put(1, 1, 2);
  Put(2, 3, 4, PutOutcome::kUnknown);
  Read(1, 5, 6);
  EXPECT_THAT(Check(), IsEmpty());
  Read(1, 7, 8);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(ChaosRecordTest, AnUnknownOneThatWasSeenMayBeUndone) {
  Put(1, 1, 2);
  Put(2, 3, 4, PutOutcome::kUnknown);
  Read(2, 5, 6);
  Read(1, 7, 8);
  EXPECT_THAT(Check(), IsEmpty());
  Read(1, 9, 10);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(ChaosRecordTest, ARefusedPutIsNeverRead) {
  Put(1, 1, 2);
  Put(2, 3, 4, PutOutcome::kRefused);
  Read(1, 5, 6);
  EXPECT_THAT(Check(), IsEmpty());
  Put(3, 7, 8, PutOutcome::kRefused);
  Read(3, 9, 10);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("put 3 was refused")));
}

TEST_F(ChaosRecordTest, ARemoveThatWasUnderWayInTheLastReadCountsLater) {
  Put(1, 1, 2);
  Remove(3, 6);
  Read(1, 5, 7);
  EXPECT_THAT(Check(), IsEmpty());
  Read(1, 8, 9);
  EXPECT_THAT(Check(), ElementsAre(HasSubstr("but a Remove")));
}

}  // namespace
}  // namespace ems::testing
