// What must hold: emsctl shows the cluster as it is, refuses what would do harm, and says plainly
// when nobody answers.
#include <csignal>
#include <cstdlib>

#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using ClusterCommandsTest = EmsctlTest;

TEST_F(ClusterCommandsTest, HelpAndVersionExitWithZeroUsageErrorsWithTwo) {
  EXPECT_EQ(RunBare({"--help"}).exit_code, 0);
  EXPECT_THAT(RunBare({"--help"}).out, HasSubstr("Exit codes"));
  EXPECT_EQ(RunBare({"--version"}).exit_code, 0);
  EXPECT_THAT(RunBare({"--version"}).out, HasSubstr("emsctl "));
  EXPECT_EQ(RunBare({}).exit_code, 2);
  const auto unknown = RunBare({"stauts"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.out, HasSubstr("emsctl: there is no command \"stauts\" (did you mean "
                                     "\"status\"?); commands here: "));
  EXPECT_EQ(RunBare({"status", "--timeout", "never"}).exit_code, 2);
}

TEST_F(ClusterCommandsTest, TheShellGetsAScriptThatKnowsTheCommands) {
  const auto script = RunBare({"completion", "bash"});
  EXPECT_EQ(script.exit_code, 0);
  EXPECT_THAT(script.out, HasSubstr("complete -F _emsctl emsctl"));
  EXPECT_THAT(script.out, HasSubstr("--controller"));
  EXPECT_EQ(RunBare({"completion", "fish"}).exit_code, 2);
}

TEST_F(ClusterCommandsTest, UnreachableControllerIsNamedWithTheWayOut) {
  const auto ran = RunBare({"--controller", "127.0.0.1:1", "--timeout", "1", "status"});
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_THAT(ran.out, HasSubstr("controller 127.0.0.1:1"));
  EXPECT_THAT(ran.out, HasSubstr("is the controller running"));
}

TEST_F(ClusterCommandsTest, AControllerWithoutAPortIsSaid) {
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"status"}, {"namespace", "list"}, {"get", "key", "-"}, {"model", "list"}}) {
    std::vector<std::string> flags = {"--controller", "localhost"};
    flags.insert(flags.end(), command.begin(), command.end());
    const auto ran = RunBare(flags);
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_THAT(ran.out, HasSubstr("controller address \"localhost\" is not host:port: the port is "
                                   "missing, write localhost:PORT"));
  }
}

// Of what went to a terminal: the one line that is an error.
nlohmann::json ErrorOf(const testing::ProgramOutput& ran) {
  const auto json = nlohmann::json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << ran.out;
  return json.is_object() ? json.value("error", nlohmann::json()) : nlohmann::json();
}

TEST_F(ClusterCommandsTest, WithJsonAnErrorIsADocumentToo) {
  const auto nobody =
      ErrorOf(RunBare({"--json", "--controller", "127.0.0.1:1", "--timeout", "1", "node", "list"}));
  EXPECT_EQ(nobody["code"], "UNAVAILABLE");
  EXPECT_THAT(nobody["message"].get<std::string>(), HasSubstr("cannot ask the controller: "));
  EXPECT_THAT(nobody["advice"].get<std::string>(), HasSubstr("EMS_CONTROLLER"));
  const auto unknown = ErrorOf(Run({"node", "show", "nobody", "--json"}));
  EXPECT_EQ(unknown["code"], "NOT_FOUND");
  EXPECT_FALSE(unknown.contains("advice"));
  for (const auto& flags :
       std::vector<std::vector<std::string>>{{"--json", "stauts"},
                                             {"status", "--json", "--colour"},
                                             {"--json", "--cluster", "x", "status"}}) {
    const auto usage = RunBare(flags);
    EXPECT_EQ(usage.exit_code, 2);
    EXPECT_EQ(ErrorOf(usage)["code"], "INVALID_ARGUMENT");
  }
  // What follows "--" is a name.
  EXPECT_EQ(RunBare({"--colour", "--", "--json"}).out.find('{'), std::string::npos);
}

TEST_F(ClusterCommandsTest, StatusOfAHealthyClusterIsOk) {
  const auto json = RunJson({"status"});
  EXPECT_EQ(json["health"], "OK");
  EXPECT_EQ(json["cluster"].get<std::string>().size(), 16U);
  EXPECT_EQ(json["servers"]["up"], 1);
  EXPECT_EQ(Run({"status", "--check"}).exit_code, 0);
  EXPECT_THAT(Run({"status"}).out, HasSubstr("1 up, 0 down"));
}

TEST_F(ClusterCommandsTest, NodesAndViewNameTheServerAndItsSlots) {
  const auto nodes = RunJson({"node", "list"});
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0]["name"], testing::Cluster::ServerName(0));
  EXPECT_EQ(nodes[0]["slots"], kSlotCount);
  const auto view = RunJson({"view", "show", "--slots"});
  EXPECT_EQ(view["owners"].size(), kSlotCount);
  EXPECT_THAT(Run({"view", "show", "--slots"}).out, HasSubstr("0-16383"));
}

TEST_F(ClusterCommandsTest, AServerThatDoesNotAnswerIsShownWithoutStatistics) {
  cluster_->server(0).Signal(SIGSTOP);
  const auto ran = Run({"--timeout", "0.5", "node", "show", testing::Cluster::ServerName(0)});
  cluster_->server(0).Signal(SIGCONT);
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_THAT(ran.out, HasSubstr("data address"));
}

TEST_F(ClusterCommandsTest, OldSpellingsAreNoCommands) {
  for (const auto& flags : std::vector<std::vector<std::string>>{
           {"nodes"}, {"node", "rm", "x"}, {"server-stats", "x"}, {"view"}, {"model", "ls"}}) {
    EXPECT_EQ(Run(flags).exit_code, 2) << flags[0];
  }
}

// With several servers: tests/e2e/drain_test.cc.
TEST_F(ClusterCommandsTest, TheOnlyServerIsNotDrained) {
  const auto last = Run({"node", "drain", "server-0", "--wait=5"});
  EXPECT_EQ(last.exit_code, 1) << last.out;
  EXPECT_THAT(last.out, HasSubstr("server server-0: "));
  EXPECT_THAT(last.out, HasSubstr("no other server could have its slots"));
  EXPECT_EQ(Run({"node", "drain", "nobody"}).exit_code, 3);
  EXPECT_EQ(RunJson({"node", "drain", "server-0", "--cancel"})["drain_cancelled"], "server-0");
  EXPECT_EQ(Run({"node", "drain", "server-0", "--cancel", "--wait"}).exit_code, 0);
  EXPECT_EQ(RunJson({"node", "list"})[0]["drain"], "none");
}

TEST_F(ClusterCommandsTest, LiveServerIsNotForgotten) {
  const auto ran = Run({"node", "delete", testing::Cluster::ServerName(0)});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("alive"));
  EXPECT_EQ(RunJson({"node", "list"}).size(), 1U);
  EXPECT_EQ(Run({"node", "delete", "nobody"}).exit_code, 3);
}

TEST_F(ClusterCommandsTest, AServerIsShownWithItsStatisticsAndUnknownOnesAreNamed) {
  const auto shown = RunJson({"node", "show", testing::Cluster::ServerName(0)});
  EXPECT_EQ(shown["name"], testing::Cluster::ServerName(0));
  EXPECT_EQ(shown["stats"]["name"], testing::Cluster::ServerName(0));
  EXPECT_THAT(Run({"node", "show", testing::Cluster::ServerName(0)}).out,
              HasSubstr("pool.page_kind"));
  const auto ran = Run({"node", "show", "nobody"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_THAT(ran.out, HasSubstr("emsctl node list"));
}

TEST_F(ClusterCommandsTest, AnotherClusterThanTheOneThatIsMeantIsRefusedByName) {
  ExpectRefused({"status"});
  ExpectRefused({"node", "list"});
  ExpectRefused({"view", "show"});
  ExpectRefused({"view", "accept-loss"});
  ExpectRefused({"view", "accept-ahead"});
  ExpectRefused({"node", "delete", testing::Cluster::ServerName(0)});
  ExpectRefused({"node", "show", testing::Cluster::ServerName(0)});
  EXPECT_EQ(Run({"status", "--cluster", OwnId()}).exit_code, 0);
}

TEST_F(ClusterCommandsTest, TheClusterThatIsMeantMayComeFromTheEnvironment) {
  ASSERT_EQ(setenv("EMS_CLUSTER", OtherId().c_str(), 1), 0);
  const auto refused = Run({"status"});
  unsetenv("EMS_CLUSTER");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr(OwnId()));
}

TEST_F(ClusterCommandsTest, AnIdThatIsNoneIsAUsageError) {
  for (const char* id : {"mine", "12", "0000000000000000"}) {
    const auto ran = Run({"--cluster", id, "status"});
    EXPECT_EQ(ran.exit_code, 2) << id;
    EXPECT_THAT(ran.out, HasSubstr("16 hexadecimal digits")) << id;
  }
}

}  // namespace
}  // namespace ems::emsctl
