#include "mp_controller/etcd/leader_lease.h"

#include <gtest/gtest.h>

#include "tests/mp_controller/etcd/fake_etcd.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LeaderLeaseTest : public ::testing::Test {
 protected:
  LeaderLeaseOptions Options(const std::string& address) {
    return {
        .prefix = "/ems", .address = address, .lease = seconds(5), .timeout = milliseconds(500)};
  }
  bool Take(LeaderLease* lease) {
    const Result<bool> taken = lease->TryTake();
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() && *taken;
  }

  FakeEtcd etcd_;
  ManualClock clock_;
  EtcdClient client_{etcd_.address()};
  LeaderLease a_{&client_, &clock_, Options("a:1")};
  LeaderLease b_{&client_, &clock_, Options("b:1")};
};

TEST_F(LeaderLeaseTest, TheFirstOneLeadsAndTheOtherFollows) {
  EXPECT_FALSE(a_.Holds());
  EXPECT_TRUE(Take(&a_));
  EXPECT_TRUE(a_.Holds());
  EXPECT_FALSE(Take(&b_));
  EXPECT_EQ(b_.leader(), "a:1");
}

TEST_F(LeaderLeaseTest, OneThatIsSilentHasEndedBeforeAnotherTakesOver) {
  EXPECT_TRUE(Take(&a_));
  clock_.Advance(milliseconds(1));
  for (Duration waited{}; !Take(&b_); waited += milliseconds(100)) {
    ASSERT_LT(waited, seconds(6));
    clock_.Advance(milliseconds(100));
  }
  EXPECT_FALSE(a_.Holds());
  EXPECT_TRUE(b_.Holds());
  EXPECT_EQ(b_.leader(), "b:1");
  // It has lost the row, whatever its clock says.
  EXPECT_EQ(a_.Renew(), OkStatus());
  EXPECT_FALSE(a_.Holds());
  EXPECT_FALSE(Take(&a_));
  EXPECT_EQ(a_.leader(), "b:1");
}

TEST_F(LeaderLeaseTest, OneThatRenewsIsNotTakenOver) {
  EXPECT_TRUE(Take(&a_));
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(seconds(2));
    EXPECT_EQ(a_.Renew(), OkStatus());
    EXPECT_FALSE(Take(&b_)) << i;
    EXPECT_TRUE(a_.Holds());
  }
}

TEST_F(LeaderLeaseTest, ItCountsFromWhenItAskedAndAChallengerFromWhenItSaw) {
  EXPECT_TRUE(Take(&a_));
  clock_.Advance(seconds(3));
  EXPECT_FALSE(Take(&b_));  // sees the row for the first time
  clock_.Advance(seconds(3));
  EXPECT_FALSE(a_.Holds());
  EXPECT_FALSE(Take(&b_)) << "a lease has not passed since it looked first";
  clock_.Advance(seconds(3));
  EXPECT_TRUE(Take(&b_));
}

TEST_F(LeaderLeaseTest, WhoWasPausedIsOutByItsOwnClockAlone) {
  EXPECT_TRUE(Take(&a_));
  clock_.Advance(seconds(20));
  EXPECT_FALSE(a_.Holds());
  EXPECT_EQ(a_.Left() <= Duration::zero(), true);
}

TEST_F(LeaderLeaseTest, WithoutAnAnswerItEndsInTimeAndNotBefore) {
  EXPECT_TRUE(Take(&a_));
  etcd_.Set(FakeEtcd::Mood::kSilent);
  clock_.Advance(seconds(2));
  EXPECT_FALSE(a_.Renew().ok());
  EXPECT_TRUE(a_.Holds());
  clock_.Advance(seconds(3));
  EXPECT_FALSE(a_.Holds());
  EXPECT_EQ(a_.Healthy(), OkStatus());
  clock_.Advance(seconds(11));
  EXPECT_EQ(a_.Healthy().code(), StatusCode::kUnavailable);
}

TEST_F(LeaderLeaseTest, WhoHasLostItDoesNotGetItBackByARenewalOnItsWay) {
  EXPECT_TRUE(Take(&a_));
  a_.Lose("a write has had no answer");
  EXPECT_FALSE(a_.Holds());
  EXPECT_EQ(a_.Renew(), OkStatus());
  EXPECT_FALSE(a_.Holds());
}

TEST_F(LeaderLeaseTest, LetGoItIsTakenAtOnce) {
  EXPECT_TRUE(Take(&a_));
  EXPECT_FALSE(Take(&b_));
  a_.Release();
  EXPECT_FALSE(a_.Holds());
  EXPECT_TRUE(Take(&b_));
}

TEST_F(LeaderLeaseTest, WhoseLeaseItIsIsNotTakenFromTheOther) {
  EXPECT_TRUE(Take(&a_));
  clock_.Advance(seconds(1));
  EXPECT_FALSE(Take(&b_));
  clock_.Advance(seconds(6));
  EXPECT_TRUE(Take(&b_));
  a_.Release();  // late: the row is b's
  EXPECT_EQ(b_.Renew(), OkStatus());
  EXPECT_TRUE(b_.Holds());
}

TEST_F(LeaderLeaseTest, EachTenureHasAGuardOfItsOwn) {
  EXPECT_TRUE(Take(&a_));
  const auto first = a_.guard().value;
  a_.Release();
  EXPECT_TRUE(Take(&a_));
  EXPECT_NE(a_.guard().value, first);
}

TEST_F(LeaderLeaseTest, ARowOfSomethingElseIsAnError) {
  etcd_.Put("/ems/leader", "hello");
  EXPECT_EQ(a_.TryTake().status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ems::controller
