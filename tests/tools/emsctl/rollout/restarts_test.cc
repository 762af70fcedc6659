// What must hold: each server is restarted in the way that its deployment keeps what it has, in the
// order wanted, and none for which there is no such way.
#include "tools/emsctl/rollout/restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems::emsctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlanRestartsTest : public ::testing::Test {
 protected:
  v1::NodeStatus* Add(const std::string& name, uint64_t lineage = 0) {
    v1::NodeStatus* const node = nodes_.add_nodes();
    node->mutable_node()->set_name(name);
    node->mutable_node()->set_state(v1::NODE_LIVE);
    node->mutable_node()->set_data_address("10.0.0." + std::to_string(nodes_.nodes_size()) +
                                           ":7500");
    node->mutable_node()->set_lineage(lineage);
    return node;
  }
  // "name method host", or the error.
  std::vector<std::string> Plan(std::vector<std::string> servers = {},
                                std::optional<RestartMethod> method = std::nullopt) {
    RestartOptions options;
    options.servers = std::move(servers);
    options.method = method;
    const auto steps = PlanRestarts(nodes_, *CommandWords::Parse("restart {name}"), options);
    if (!steps.ok()) return {std::string(Message(steps.status()))};
    std::vector<std::string> lines;
    for (const RestartStep& step : *steps) {
      EXPECT_THAT(step.words, ElementsAre("restart", step.name));
      lines.push_back(step.name + (step.method == RestartMethod::kHold ? " hold " : " drain ") +
                      step.host);
    }
    return lines;
  }

  v1::ListNodesReply nodes_;
};

TEST_F(PlanRestartsTest, EachAsItsDeploymentKeepsWhatItHas) {
  Add("b");
  Add("a", 77);
  EXPECT_THAT(Plan(), ElementsAre("a hold 10.0.0.2", "b drain 10.0.0.1"));
  EXPECT_THAT(Plan({"b", "a", "b"}), ElementsAre("b drain 10.0.0.1", "a hold 10.0.0.2"));
  EXPECT_THAT(Plan({"a"}, RestartMethod::kDrain), ElementsAre("a drain 10.0.0.2"));
  nodes_.clear_nodes();
  EXPECT_THAT(Plan(), IsEmpty());
}

TEST_F(PlanRestartsTest, WhoHasLeftOrIsDrainedIsLeftAloneUnlessItIsNamed) {
  Add("a", 77);
  Add("b", 77)->set_drain(v1::DRAIN_DRAINED);
  Add("c", 77)->mutable_node()->set_state(v1::NODE_LEFT);
  EXPECT_THAT(Plan(), ElementsAre("a hold 10.0.0.1"));
  EXPECT_THAT(Plan({"b"}), ElementsAre(HasSubstr("server b is drained")));
  EXPECT_THAT(Plan({"c"}), ElementsAre(HasSubstr("server c does not live")));
  EXPECT_THAT(Plan({"d"}), ElementsAre(HasSubstr("server d: no such server")));
  nodes_.mutable_nodes(0)->mutable_node()->set_state(v1::NODE_DOWN);
  EXPECT_THAT(Plan(), ElementsAre(HasSubstr("server a does not live")));
}

TEST_F(PlanRestartsTest, TheOnlyServerHasNowhereToGiveWhatItHas) {
  Add("a");
  Add("b")->set_drain(v1::DRAIN_DRAINED);
  EXPECT_THAT(Plan(), ElementsAre(HasSubstr("no other server could take")));
  EXPECT_THAT(Plan({}, RestartMethod::kHold), ElementsAre("a hold 10.0.0.1"));
}

TEST_F(PlanRestartsTest, AServerWhoseNameCouldBeReadAsMoreEndsThePlan) {
  Add("a", 77);
  Add("$(reboot)", 77);
  EXPECT_THAT(Plan(), ElementsAre(HasSubstr("restart this server by hand")));
}

}  // namespace
}  // namespace ems::emsctl
