#include "mp_controller/etcd/election.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/mp_controller/etcd/fake_etcd.h"
#include "tests/support/eventually.h"

namespace ems::controller {
namespace {

using ems::testing::Eventually;
using std::chrono::milliseconds;

// One controller, whose tenure only counts.
struct Runner {
  Runner(FakeEtcd* etcd, const std::string& address, const Status& begins = OkStatus())
      : client(etcd->address()),
        lease(&client, &Clock::System(),
              {.prefix = "/ems",
               .address = address,
               .lease = milliseconds(500),
               .timeout = milliseconds(200)}),
        election({.lease = &lease,
                  .lead =
                      [this, begins] {
                        ++begun;
                        leads = true;
                        return begins;
                      },
                  .end =
                      [this] {
                        leads = false;
                        ++ended;
                      },
                  .follow = [] { return OkStatus(); },
                  .look =
                      [this] {
                        ++looks;
                        return OkStatus();
                      },
                  .on_error = [this] { ++errors; }}) {}

  EtcdClient client;
  LeaderLease lease;
  std::atomic<int> begun{0}, ended{0}, looks{0}, errors{0};
  std::atomic<bool> leads{false};
  Election election;
};

TEST(ElectionTest, OneLeadsUntilItEndsAndThenTheOther) {
  FakeEtcd etcd;
  auto a = std::make_unique<Runner>(&etcd, "a:1");
  ASSERT_TRUE(Eventually([&] { return a->leads.load(); }));
  Runner b(&etcd, "b:1");
  ASSERT_TRUE(Eventually([&] { return b.looks > 3; }));
  EXPECT_FALSE(b.leads);
  EXPECT_EQ(b.lease.leader(), "a:1");
  a.reset();
  EXPECT_TRUE(Eventually([&] { return b.leads.load(); }));
}

TEST(ElectionTest, WithoutEtcdTheTenureEndsAndABetterDayBringsAnother) {
  FakeEtcd etcd;
  Runner a(&etcd, "a:1");
  ASSERT_TRUE(Eventually([&] { return a.leads.load(); }));
  etcd.Set(FakeEtcd::Mood::kSilent);
  EXPECT_TRUE(Eventually([&] { return a.ended == 1; }));
  EXPECT_FALSE(a.lease.Holds());
  EXPECT_TRUE(Eventually([&] { return a.errors > 2; }));
  EXPECT_EQ(a.election.fault(), OkStatus());
  etcd.Set(FakeEtcd::Mood::kWell);
  EXPECT_TRUE(Eventually([&] { return a.begun == 2 && a.leads; }));
}

TEST(ElectionTest, WhatStandsInForEtcdForAWhileEndsNoCandidate) {
  FakeEtcd etcd;
  Runner a(&etcd, "a:1");
  ASSERT_TRUE(Eventually([&] { return a.leads.load(); }));
  for (const auto mood : {FakeEtcd::Mood::kReplaced, FakeEtcd::Mood::kGuarded}) {
    const int begun = a.begun;
    etcd.Set(mood);
    ASSERT_TRUE(Eventually([&] { return !a.leads; }));
    const int errors = a.errors;
    EXPECT_TRUE(Eventually([&] { return a.errors > errors + 3; }));
    EXPECT_EQ(a.election.fault(), OkStatus());
    etcd.Set(FakeEtcd::Mood::kWell);
    EXPECT_TRUE(Eventually([&] { return a.begun > begun && a.leads; }));
  }
}

TEST(ElectionTest, WhatWasNeverAnEtcdIsLeftToAnOperator) {
  FakeEtcd etcd;
  etcd.Set(FakeEtcd::Mood::kReplaced);
  Runner a(&etcd, "a:1");
  ASSERT_TRUE(Eventually([&] { return !a.election.fault().ok(); }));
  EXPECT_EQ(a.election.fault().code(), StatusCode::kUnimplemented);
}

TEST(ElectionTest, ALostLeaseEndsTheTenure) {
  FakeEtcd etcd;
  Runner a(&etcd, "a:1");
  ASSERT_TRUE(Eventually([&] { return a.leads.load(); }));
  a.lease.Lose("a write has had no answer");
  EXPECT_TRUE(Eventually([&] { return a.begun == 2; }));
  EXPECT_EQ(a.ended, 1);
}

TEST(ElectionTest, AStoreThatCannotBeReadForNowIsTriedAgain) {
  FakeEtcd etcd;
  Runner a(&etcd, "a:1", Error(StatusCode::kUnavailable, "for now"));
  EXPECT_TRUE(Eventually([&] { return a.begun >= 3; }));
  EXPECT_EQ(a.election.fault(), OkStatus());
}

TEST(ElectionTest, ADamagedStoreIsLeftToAnOperator) {
  FakeEtcd etcd;
  Runner a(&etcd, "a:1", Error(StatusCode::kDataLoss, "damaged"));
  ASSERT_TRUE(Eventually([&] { return !a.election.fault().ok(); }));
  EXPECT_EQ(a.election.fault().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(Eventually([&] { return a.ended == 1; }));
  Runner b(&etcd, "b:1");
  EXPECT_TRUE(Eventually([&] { return b.leads.load(); })) << "it keeps nobody from leading";
  EXPECT_EQ(a.begun, 1);
}

}  // namespace
}  // namespace ems::controller
