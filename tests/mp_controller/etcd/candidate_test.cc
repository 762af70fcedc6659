// Several controllers in this process, over a fake etcd and real gRPC.
#include "mp_controller/etcd/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mp_controller/controller.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/etcd/fake_etcd.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"

namespace ems::controller {
namespace {

using ems::testing::Eventually;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

class CandidateTest : public ::testing::Test {
 protected:
  ControllerOptions Options(int i) {
    ControllerOptions options = FastOptions(dirs_[i].path());
    options.etcd = {.endpoints = etcd_.address(),
                    .prefix = "/ems",
                    .lease = milliseconds(1000),
                    .timeout = milliseconds(500)};
    if (!ports_[i].empty()) options.listen = ports_[i];
    return options;
  }
  void Start(int i) {
    controllers_[i] = std::make_unique<Controller>(Options(i));
    const Status status = controllers_[i]->Start();
    ASSERT_EQ(status, OkStatus());
    ports_[i] = controllers_[i]->address();
  }
  std::string All() const { return ports_[0] + "," + ports_[1]; }
  // A client finds a leader.
  bool Leads(ControllerClient* client) {
    return Eventually([&] {
      v1::ListNodesReply nodes;
      return client->ListNodes(&nodes, Soon()).ok();
    });
  }

  FakeEtcd etcd_;
  TempDir dirs_[2];
  std::string ports_[2];
  std::unique_ptr<Controller> controllers_[2];
};

TEST_F(CandidateTest, AnotherOneTakesOverWithTheSameClusterViewsAndNamespaces) {
  Start(0);
  Start(1);
  ControllerClient client(All(), "test");
  ASSERT_TRUE(Leads(&client));
  ViewCache cache;
  client.StartWatch(&cache, {});
  Beater a(All(), "a", 1), b(All(), "b", 2);
  const auto before = WaitFor(&cache, HasNodes(2));
  ASSERT_NE(before, nullptr);
  NamespaceInfo wanted;
  wanted.name = "kept";
  const auto made = client.CreateNamespace(wanted, Soon());
  ASSERT_TRUE(made.ok()) << made.status();

  controllers_[0].reset();
  ASSERT_TRUE(Leads(&client));
  const auto after = WaitFor(&cache, [&](const DhtView& view) {
    return view.version().term() > before->version().term();
  });
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->cluster(), before->cluster());
  EXPECT_EQ(after->slots(), before->slots());
  EXPECT_GT(after->version(), before->version());
  const auto kept = client.GetNamespace("kept", Soon());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->ref, made->ref);
}

TEST_F(CandidateTest, AnEtcdThatWasEmptiedIsNoFirstStartForLeaderNorFollower) {
  Start(0);
  Start(1);
  ControllerClient client(All(), "test");
  ASSERT_TRUE(Leads(&client));
  Beater a(All(), "a", 1);
  // Also the follower has seen what there was.
  ::poll(nullptr, 0, 500);
  etcd_.Clear();
  for (const auto& controller : controllers_) {
    EXPECT_TRUE(Eventually([&] { return !controller->fault().ok(); }));
    EXPECT_EQ(controller->fault().code(), StatusCode::kDataLoss) << controller->fault();
    EXPECT_THAT(Message(controller->fault()), HasSubstr("etcd was emptied"));
  }
  for (const auto& [key, value] : etcd_.rows()) EXPECT_EQ(key, "/ems/leader");
}

TEST_F(CandidateTest, ItStartsWithoutAnEtcdAndLeadsWhenThereIsOne) {
  etcd_.Stop();
  Start(0);
  ControllerClient client(ports_[0], "test");
  v1::ListNodesReply nodes;
  const Status status = client.ListNodes(&nodes, Soon());
  EXPECT_THAT(Message(status), HasSubstr("does not lead"));
  etcd_.Start();
  EXPECT_TRUE(Leads(&client));
}

TEST_F(CandidateTest, WhatNoEtcdMendsFailsTheStart) {
  etcd_.SetVersion("2.3.8");
  Controller controller(Options(0));
  EXPECT_EQ(controller.Start().code(), StatusCode::kFailedPrecondition);
}

TEST_F(CandidateTest, AFolderGoesWithOneKindOfStore) {
  Start(0);
  ControllerClient client(ports_[0], "test");
  ASSERT_TRUE(Leads(&client));
  controllers_[0].reset();
  ControllerOptions alone = Options(0);
  alone.etcd = {};
  Controller embedded(alone);
  EXPECT_EQ(embedded.Start().code(), StatusCode::kFailedPrecondition);
  ControllerOptions other = FastOptions(dirs_[1].path());
  {
    Controller first(other);
    ASSERT_EQ(first.Start(), OkStatus());
  }
  Controller elected(Options(1));
  EXPECT_EQ(elected.Start().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ems::controller
