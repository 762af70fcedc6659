#include "mp_controller/etcd/etcd_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mp_controller/etcd/fake_etcd.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Deadline Shortly() { return Deadline::After(milliseconds(300)); }
Deadline InTime() { return Deadline::After(std::chrono::seconds(10)); }

TEST(EtcdClientTest, ATransactionHappensWhenAllConditionsHoldAndOtherwiseNothingDoes) {
  FakeEtcd etcd;
  EtcdClient client(etcd.address());
  const auto first = client.Commit(
      {.when = {{.key = "/a", .mod_revision = 0}}, .put = {{"/a", "1"}, {"/b", "2"}}}, InTime());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(*first);
  EXPECT_FALSE(
      *client.Commit({.when = {{.key = "/a", .mod_revision = 0}}, .put = {{"/a", "3"}}}, InTime()));
  EXPECT_FALSE(*client.Commit(
      {.when = {{.key = "/a", .value = "1"}, {.key = "/b", .value = "9"}}, .drop = {"/a"}},
      InTime()));
  const auto page = client.Range("/a", "", 1, 0, InTime());
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->rows.size(), 1u);
  EXPECT_EQ(page->rows[0].value, "1");
  EXPECT_TRUE(*client.Commit({.when = {{.key = "/a", .value = "1"}},
                              .drop = {"/a"},
                              .drop_range = {{"/b", KeyBehind("/b")}}},
                             InTime()));
  EXPECT_TRUE(etcd.rows().empty());
}

TEST(EtcdClientTest, RowsComeInPagesInOrder) {
  FakeEtcd etcd;
  for (const char* key : {"/x/1", "/x/2", "/x/3", "/y"}) etcd.Put(key, key);
  EtcdClient client(etcd.address());
  const auto page = client.Range("/x/", KeyBehind("/x/"), 2, 0, InTime());
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_TRUE(page->more);
  const auto rest = client.Range(page->rows.back().key + '\0', KeyBehind("/x/"), 2, 0, InTime());
  ASSERT_EQ(rest->rows.size(), 1u);
  EXPECT_EQ(rest->rows[0].key, "/x/3");
  EXPECT_FALSE(rest->more);
}

TEST(EtcdClientTest, NoAnswerEndsAtTheDeadline) {
  FakeEtcd etcd;
  EtcdClient client(etcd.address());
  etcd.Set(FakeEtcd::Mood::kSilent);
  const TimePoint start = Clock::System().Now();
  EXPECT_EQ(client.Range("/a", "", 1, 0, Shortly()).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(Clock::System().Now() - start, std::chrono::seconds(5));
}

TEST(EtcdClientTest, AMemberThatIsGoneIsPassedOver) {
  FakeEtcd gone, there;
  EtcdClient client(gone.address() + "," + there.address());
  there.Put("/a", "there");
  gone.Stop();
  const auto page = client.Range("/a", "", 1, 0, InTime());
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->rows.at(0).value, "there");
}

TEST(EtcdClientTest, AMemberThatIsNoEtcdIsPassedOverByTheNextCall) {
  FakeEtcd other, there;
  EtcdClient client(other.address() + "," + there.address());
  there.Put("/a", "there");
  other.Set(FakeEtcd::Mood::kReplaced);
  EXPECT_EQ(client.Range("/a", "", 1, 0, InTime()).status().code(), StatusCode::kUnimplemented);
  const auto page = client.Range("/a", "", 1, 0, InTime());
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->rows.at(0).value, "there");
}

TEST(EtcdClientTest, WhatIsNoEtcdThatCanBeUsedIsSaidByName) {
  FakeEtcd etcd;
  EtcdClient client(etcd.address());
  EXPECT_EQ(client.Check(InTime()), OkStatus());
  for (const char* fits : {"3.3.0", "3.5.16", "3.12.1-rc.0"}) {
    etcd.SetVersion(fits);
    EXPECT_EQ(client.Check(InTime()), OkStatus()) << fits;
  }
  for (const char* wrong : {"3.2.32", "2.3.8", "4.0.0", "", "three"}) {
    etcd.SetVersion(wrong);
    const Status status = client.Check(InTime());
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << wrong;
    EXPECT_THAT(Message(status), HasSubstr("3.3 to 3.x are supported"));
  }
  etcd.SetVersion("3.4.23");
  etcd.Set(FakeEtcd::Mood::kGuarded);
  const Status guarded = client.Check(InTime());
  EXPECT_EQ(guarded.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(Message(guarded), HasSubstr("not supported"));

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  class Other final : public etcdserverpb::Maintenance::Service {
  } other;
  builder.RegisterService(&other);
  const auto server = builder.BuildAndStart();
  EtcdClient mistaken("127.0.0.1:" + std::to_string(port));
  const Status no_etcd = mistaken.Check(InTime());
  EXPECT_EQ(no_etcd.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(no_etcd), HasSubstr("is no etcd"));

  EtcdClient wrong("http://127.0.0.1:2379");
  EXPECT_EQ(wrong.Check(InTime()).code(), StatusCode::kInvalidArgument);
}

TEST(EtcdClientTest, CloseEndsCalls) {
  FakeEtcd etcd;
  EtcdClient client(etcd.address());
  client.Close();
  EXPECT_EQ(client.Range("/a", "", 1, 0, InTime()).status().code(), StatusCode::kCancelled);
}

TEST(EtcdClientTest, TheKeyBehindAPrefix) {
  EXPECT_EQ(KeyBehind("/ems/"), "/ems0");
  EXPECT_EQ(KeyBehind("a\xff"), "b");
}

}  // namespace
}  // namespace ems::controller
