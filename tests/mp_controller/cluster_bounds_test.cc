// What must hold: however many servers come and go, the controller remembers so many that are gone,
// and forgets none that somebody still waits for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mp_controller/cluster_state.h"
#include "mp_controller/controller_metrics.h"
#include "proto/controller.pb.h"
#include "tests/mp_controller/no_store.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct ForgetfulStore final : NoStore {
  Status DeleteNode(const std::string& name) override {
    deleted.push_back(name);
    return OkStatus();
  }
  std::vector<std::string> deleted;
};

// A controller that keeps nothing, for many names that come and go, as those of containers do.
class ClusterStateBoundTest : public ::testing::Test {
 protected:
  ClusterStateBoundTest() { EXPECT_TRUE(state_.Start("").ok()); }
  Status Register(const std::string& name, uint32_t* id) {
    v1::RegisterRequest request;
    request.mutable_node()->set_name(name);
    request.mutable_node()->set_boot_id(1);
    request.mutable_node()->set_data_address("h:1");
    request.mutable_node()->set_capacity_bytes(1 << 30);
    v1::RegisterReply reply;
    EMS_RETURN_IF_ERROR(state_.Register(request, &reply));
    *id = reply.node_id();
    return OkStatus();
  }
  uint32_t Come(const std::string& name) {
    uint32_t id = 0;
    EXPECT_EQ(Register(name, &id), OkStatus()) << name;
    return id;
  }
  void ComeAndGo(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      v1::LeaveRequest leave;
      leave.set_node_id(Come("n" + std::to_string(i)));
      leave.set_boot_id(1);
      v1::LeaveReply left;
      ASSERT_TRUE(state_.Leave(leave, &left).ok());
    }
  }
  // With heartbeats of these, which install each view.
  void RunWith(const std::vector<uint32_t>& ids, Duration time) {
    for (Duration past{}; past < time; past += milliseconds(500)) {
      clock_.Advance(milliseconds(500));
      state_.Tick();
      for (const uint32_t id : ids) {
        v1::HeartbeatRequest request;
        request.set_node_id(id);
        request.set_boot_id(1);
        request.set_term(publisher_.view()->version().term());
        request.set_epoch(publisher_.view()->version().epoch());
        v1::HeartbeatReply reply;
        (void)state_.Heartbeat(request, &reply);
      }
    }
  }

  ManualClock clock_;
  ForgetfulStore store_;
  MetricsRegistry registry_;
  ControllerMetrics metrics_{&registry_};
  ViewPublisher publisher_{1};
  ClusterState state_{MembershipOptions{}, {&clock_, &store_, &publisher_, &metrics_}};
};

TEST_F(ClusterStateBoundTest, OfNodesThatAreGoneTheOldestGivesWayToANewOne) {
  ComeAndGo(kGoneNodesMax);
  EXPECT_TRUE(store_.deleted.empty());
  EXPECT_EQ(Come("new"), kGoneNodesMax + 1) << "an id is never used twice";
  EXPECT_EQ(store_.deleted, std::vector<std::string>{"n0"});
  v1::ListNodesReply list;
  ASSERT_TRUE(state_.ListNodes({}, &list).ok());
  EXPECT_EQ(static_cast<size_t>(list.nodes_size()), kGoneNodesMax);
}

// It had all slots, was alone in its view, and nobody knows whether it still takes Puts by that.
TEST_F(ClusterStateBoundTest, OneThatPutsWaitForDoesNotGiveWay) {
  state_.Listen();
  RunWith({Come("a")}, seconds(2));
  const std::vector<uint32_t> others = {Come("b"), Come("c")};
  RunWith(others, seconds(20));
  ASSERT_EQ(publisher_.view()->nodes().size(), 2u) << "without the first";
  ComeAndGo(kGoneNodesMax - 1);
  uint32_t id = 0;
  const Status refused = Register("new", &id);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(refused).find("the oldest, a: accept the loss first"), std::string::npos)
      << refused;
  EXPECT_TRUE(store_.deleted.empty());
  v1::AcceptLossReply accepted;
  ASSERT_EQ(state_.AcceptLoss({}, &accepted), OkStatus());
  (void)Come("new");
  EXPECT_EQ(store_.deleted, std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace ems::controller
