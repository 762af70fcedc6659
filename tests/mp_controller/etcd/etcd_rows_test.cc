#include "mp_controller/etcd/etcd_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mp_controller/etcd/fake_etcd.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using RowsSeen = EtcdRows::Values;

// One controller that leads, with rows of its own.
struct Leader {
  Leader(FakeEtcd* etcd, const std::string& address)
      : client(etcd->address()),
        lease(&client, &clock,
              {.prefix = "/ems",
               .address = address,
               .lease = seconds(5),
               .timeout = milliseconds(500)}) {
    Begin();
  }
  void Begin() {
    clock.Advance(seconds(1));
    bool leads = false;
    for (int tries = 0; tries < 60 && !leads; ++tries, clock.Advance(seconds(1))) {
      const Result<bool> taken = lease.TryTake();
      ASSERT_TRUE(taken.ok()) << taken.status();
      leads = *taken;
    }
    ASSERT_TRUE(leads);
    rows = std::make_unique<EtcdRows>(
        EtcdRows::Parts{.etcd = &client,
                        .lease = &lease,
                        .base = "/ems/cluster",
                        .check = [this](uint64_t changes, const EtcdRows::Values&) {
                          found = changes;
                          return OkStatus();
                        }});
    read = rows->ForEach([this](std::string_view key, std::string_view value) {
      seen[std::string(key)] = value;
      return OkStatus();
    });
  }

  ManualClock clock;
  EtcdClient client;
  LeaderLease lease;
  std::unique_ptr<EtcdRows> rows;
  Status read;
  uint64_t found = 0;
  RowsSeen seen;
};

class EtcdRowsTest : public ::testing::Test {
 protected:
  RowsSeen Stored() { return Leader(&etcd_, "later:1").seen; }
  FakeEtcd etcd_;
};

TEST_F(EtcdRowsTest, AChangeIsThereForTheNextLeader) {
  Leader a(&etcd_, "a:1");
  ASSERT_EQ(a.read, OkStatus());
  EXPECT_TRUE(a.seen.empty());
  ASSERT_EQ(a.rows->Write({.put = {{"x", "1"}, {"y", "2"}}, .drop = {}}), OkStatus());
  ASSERT_EQ(a.rows->Write({.put = {{"x", "3"}}, .drop = {"y", "never there"}}), OkStatus());
  Leader b(&etcd_, "b:1");
  ASSERT_EQ(b.read, OkStatus());
  EXPECT_EQ(b.seen, (RowsSeen{{"x", "3"}}));
  EXPECT_EQ(b.found, 2u);
}

TEST_F(EtcdRowsTest, AnOldLeaderWritesNothing) {
  Leader a(&etcd_, "a:1");
  ASSERT_EQ(a.rows->Write({.put = {{"x", "a"}}, .drop = {}}), OkStatus());
  Leader b(&etcd_, "b:1");
  // Its clock stood still, as that of a machine that was paused would.
  ASSERT_TRUE(a.lease.Holds());
  EXPECT_EQ(a.rows->Write({.put = {{"x", "late"}}, .drop = {}}).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(a.lease.Holds());
  const int asked = etcd_.transactions();
  EXPECT_EQ(a.rows->Write({.put = {{"x", "later"}}, .drop = {}}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(etcd_.transactions(), asked) << "it does not even ask";
  EXPECT_EQ(Stored(), (RowsSeen{{"x", "a"}}));
}

TEST_F(EtcdRowsTest, AWriteWithoutAnAnswerEndsTheTenureWhetherOrNotItHappened) {
  Leader a(&etcd_, "a:1");
  etcd_.Set(FakeEtcd::Mood::kForgetful);
  EXPECT_EQ(a.rows->Write({.put = {{"x", "1"}}, .drop = {}}).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(a.lease.Holds());
  etcd_.Set(FakeEtcd::Mood::kWell);
  EXPECT_EQ(Stored(), (RowsSeen{{"x", "1"}})) << "the next leader finds what has happened";
}

TEST_F(EtcdRowsTest, AWriteThatComesAfterTheTenureDoesNothing) {
  Leader a(&etcd_, "a:1");
  ASSERT_EQ(a.rows->Write({.put = {{"x", "1"}}, .drop = {}}), OkStatus());
  etcd_.Set(FakeEtcd::Mood::kLate);
  EXPECT_FALSE(a.rows->Write({.put = {{"x", "late"}}, .drop = {}}).ok());
  etcd_.Set(FakeEtcd::Mood::kWell);
  a.lease.Release();
  // The same controller again: its guard is another one.
  a.Begin();
  ASSERT_EQ(a.rows->Write({.put = {{"x", "2"}}, .drop = {}}), OkStatus());
  EXPECT_EQ(etcd_.SendLate(), 0);
  EXPECT_EQ(Stored(), (RowsSeen{{"x", "2"}}));
}

TEST_F(EtcdRowsTest, ALargeValueGoesInPartsAndItsPartsGoWithIt) {
  Leader a(&etcd_, "a:1");
  const std::string large(5'000'000, 'l'), other(3'000'000, 'o');
  ASSERT_EQ(a.rows->Write({.put = {{"large", large}, {"small", "s"}}, .drop = {}}), OkStatus());
  EXPECT_EQ(Stored(), (RowsSeen{{"large", large}, {"small", "s"}}));
  Leader b(&etcd_, "b:1");
  ASSERT_EQ(b.rows->Write({.put = {{"large", other}}, .drop = {}}), OkStatus());
  EXPECT_EQ(Stored(), (RowsSeen{{"large", other}, {"small", "s"}}));
  Leader c(&etcd_, "c:1");
  ASSERT_EQ(c.rows->Write({.put = {}, .drop = {"large"}}), OkStatus());
  for (const auto& [key, value] : etcd_.rows()) EXPECT_EQ(key.find("/part/"), std::string::npos);
}

TEST_F(EtcdRowsTest, PartsOfAChangeThatWasNotMadeAreDropped) {
  Leader a(&etcd_, "a:1");
  etcd_.SilentAfter(3);
  EXPECT_FALSE(a.rows->Write({.put = {{"large", std::string(5'000'000, 'l')}}, .drop = {}}).ok());
  etcd_.SilentAfter(-1);
  etcd_.Set(FakeEtcd::Mood::kWell);
  EXPECT_EQ(Stored(), RowsSeen());
  for (const auto& [key, value] : etcd_.rows()) EXPECT_EQ(key.find("/part/"), std::string::npos);
}

TEST_F(EtcdRowsTest, AChangeOfManyRowsHappensAsAWholeWhereverItsLeaderEnds) {
  RowChange many;
  RowsSeen after;
  for (int i = 0; i < 350; ++i) {
    const std::string key = std::to_string(i);
    if (i % 3 == 0) {
      many.drop.push_back(key);
      continue;
    }
    many.put.emplace_back(key, "new");
    after[key] = "new";
  }
  for (int steps = 0;; ++steps) {
    FakeEtcd etcd;
    Leader a(&etcd, "a:1");
    RowsSeen before;
    for (int i = 0; i < 350; i += 50) {
      RowChange some;
      for (int j = i; j < i + 50; ++j) some.put.emplace_back(std::to_string(j), "old");
      ASSERT_EQ(a.rows->Write(some), OkStatus());
      for (const auto& [key, value] : some.put) before[key] = value;
    }
    etcd.SilentAfter(steps);
    const bool written = a.rows->Write(many).ok();
    etcd.SilentAfter(-1);
    etcd.Set(FakeEtcd::Mood::kWell);
    Leader b(&etcd, "b:1");
    ASSERT_EQ(b.read, OkStatus()) << "after " << steps << " steps";
    EXPECT_EQ(b.seen, steps == 0 ? before : after) << "after " << steps << " steps";
    EXPECT_FALSE(etcd.rows().contains("/ems/cluster/journal"));
    ASSERT_EQ(b.rows->Write({.put = {{"x", "1"}}, .drop = {}}), OkStatus());
    if (written) break;
    ASSERT_LT(steps, 20);
  }
}

TEST_F(EtcdRowsTest, RowsThatSomebodyElseHasChangedAreDamage) {
  {
    Leader a(&etcd_, "a:1");
    ASSERT_EQ(a.rows->Write({.put = {{"x", "1"}, {"y", "2"}}, .drop = {}}), OkStatus());
  }
  etcd_.Put("/ems/cluster/row/x", "v7");
  Leader b(&etcd_, "b:1");
  EXPECT_EQ(b.read.code(), StatusCode::kDataLoss);
  EXPECT_THAT(Message(b.read), HasSubstr("/ems/cluster"));
  EXPECT_TRUE(b.seen.empty());
}

TEST_F(EtcdRowsTest, RowsThatWereTakenAwayUnderItEndTheTenure) {
  Leader a(&etcd_, "a:1");
  ASSERT_EQ(a.rows->Write({.put = {{"x", "1"}}, .drop = {}}), OkStatus());
  const std::string leader = etcd_.rows().at("/ems/leader");
  etcd_.Clear();
  etcd_.Put("/ems/leader", leader);
  EXPECT_FALSE(a.rows->Write({.put = {{"x", "2"}}, .drop = {}}).ok());
  EXPECT_FALSE(a.lease.Holds());
  EXPECT_EQ(etcd_.rows().size(), 1u) << "the ledger shows that they are not as it left them";
}

TEST_F(EtcdRowsTest, AFollowerSeesHowManyChangesThereWere) {
  Leader a(&etcd_, "a:1");
  EtcdClient client(etcd_.address());
  const Deadline soon = Deadline::After(seconds(10));
  EXPECT_EQ(EtcdRows::Look(&client, "/ems/cluster", "x", soon)->changes, 0u);
  ASSERT_EQ(a.rows->Write({.put = {{"x", "1"}}, .drop = {}}), OkStatus());
  const auto seen = EtcdRows::Look(&client, "/ems/cluster", "x", soon);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->changes, 1u);
  EXPECT_EQ(seen->value, "1");
}

}  // namespace
}  // namespace ems::controller
