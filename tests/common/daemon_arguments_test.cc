// What must hold: a daemon's command line ends in a configuration that is loaded, or in an exit
// code (0 answered, 2 usage or configuration) with the answer or the error printed.
#include "common/daemon_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/config.pb.h"

namespace ems {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DaemonArgumentsTest : public ::testing::Test {
 protected:
  template <typename Action>
  auto Captured(Action action) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    auto result = action();
    out_ = ::testing::internal::GetCapturedStdout();
    errors_ = ::testing::internal::GetCapturedStderr();
    return result;
  }
  // Loads; what was printed is in out_ and errors_.
  std::optional<int> Load(std::vector<std::string> words) {
    return Captured([&] { return arguments_.Load(std::move(words), &config_); });
  }

  DaemonArguments arguments_{
      {.program = {.name = "ems-daemon", .about = "Runs.", .version = "1.2", .footer = "The end"},
       .set_example = "name=a",
       .ready_file = "One line once ready",
       .metrics = [] { return std::string("ems_all_total counter\n"); }}};
  config::ServerConfig config_;
  std::string out_, errors_;
};

TEST_F(DaemonArgumentsTest, OverridesComeAfterTheFile) {
  const std::string path =
      ::testing::TempDir() + "/daemon_arguments." + std::to_string(::getpid()) + ".yaml";
  std::ofstream(path) << "name: a\ndata_dir: /d\nlog_level: warn\n";
  EXPECT_EQ(Load({"--config", path, "--set", "name=b", "--set", "dram.bytes=8GiB", "--ready-file",
                  "/tmp/ready"}),
            std::nullopt)
      << errors_;
  EXPECT_EQ(config_.name(), "b");
  EXPECT_EQ(config_.data_dir(), "/d");
  EXPECT_EQ(config_.log_level(), "warn");
  EXPECT_EQ(arguments_.ready_file(), "/tmp/ready");
  EXPECT_FALSE(arguments_.check_only());
  std::filesystem::remove(path);
}

TEST_F(DaemonArgumentsTest, HelpNamesEachOption) {
  EXPECT_EQ(Load({"--help"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("Runs."), HasSubstr("--config"), HasSubstr("--set name=a"),
                          HasSubstr("One line once ready"), HasSubstr("--help-config"),
                          HasSubstr("--check-config"), HasSubstr("The end")));
  EXPECT_EQ(Load({"--version"}), 0);
  EXPECT_EQ(out_, "ems-daemon 1.2\n");
}

TEST_F(DaemonArgumentsTest, HelpConfigNamesTheOptionsOfTheConfiguration) {
  EXPECT_EQ(Load({"--help-config"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("data_dir"), HasSubstr("log_level")));
}

TEST_F(DaemonArgumentsTest, HelpMetricsNeedsNoConfiguration) {
  EXPECT_EQ(Load({"--help-metrics"}), 0);
  EXPECT_EQ(out_, "ems_all_total counter\n");
}

TEST_F(DaemonArgumentsTest, WrongArgumentsAreUsageErrors) {
  EXPECT_EQ(Load({"--colour"}), 2);
  EXPECT_THAT(errors_, HasSubstr("--colour"));
}

TEST_F(DaemonArgumentsTest, AFileThatIsNotThereIsRefusedInTheNameOfTheDaemon) {
  EXPECT_EQ(Load({"--config", "/no such folder/a.yaml"}), 2);
  EXPECT_THAT(errors_, AllOf(HasSubstr("ems-daemon: "), HasSubstr("/no such folder/a.yaml")));
}

TEST_F(DaemonArgumentsTest, AnOverrideOfNoOptionIsRefusedInTheNameOfTheDaemon) {
  EXPECT_EQ(Load({"--set", "name=a", "--set", "data_dir=/d", "--set", "colour=red"}), 2);
  EXPECT_THAT(errors_, AllOf(HasSubstr("ems-daemon: "), HasSubstr("colour")));
}

TEST_F(DaemonArgumentsTest, CheckConfigPrintsTheConfigurationAndWarnings) {
  ASSERT_EQ(Load({"--check-config", "--set", "name=a", "--set", "data_dir=/d"}), std::nullopt);
  ASSERT_TRUE(arguments_.check_only());
  const std::vector<Status> problems = {Error(StatusCode::kNotFound, "nothing is there")};
  EXPECT_EQ(Captured([&] { return arguments_.ShowConfig(config_, problems); }), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("name: \"a\"\n"), HasSubstr("data_dir: \"/d\"\n")));
  EXPECT_EQ(errors_, "ems-daemon: warning: on this machine nothing is there\n");
}

TEST_F(DaemonArgumentsTest, ADaemonMayHaveOptionsOfItsOwn) {
  std::string file;
  arguments_.program()->AddOption("--write-model", &file, "Write and exit");
  EXPECT_EQ(Load({"--write-model", "m", "--set", "name=a", "--set", "data_dir=/d"}), std::nullopt);
  EXPECT_EQ(file, "m");
}

TEST_F(DaemonArgumentsTest, FailuresArePrintedInTheNameOfTheDaemon) {
  EXPECT_EQ(Captured([&] { return arguments_.Fail(kDaemonFailed, "no {room}"); }), 1);
  EXPECT_EQ(errors_, "ems-daemon: no {room}\n");
  const Status bad = Error(StatusCode::kInvalidArgument, "bad name");
  EXPECT_EQ(Captured([&] { return arguments_.Refuse(bad); }), 2);
  EXPECT_EQ(errors_, "ems-daemon: bad name\n");
  EXPECT_THAT(out_, IsEmpty());
}

TEST(OpenLogTest, ALevelThatIsNoneAndAProblemThatCannotPassStopTheStart) {
  EXPECT_EQ(OpenLog("loud", "text", "test", {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenLog("info", "xml", "test", {}).code(), StatusCode::kInvalidArgument);
  const Status passing = Error(StatusCode::kNotFound, "folder");
  const Status fatal = Error(StatusCode::kInvalidArgument, "memory");
  EXPECT_EQ(OpenLog("error", "text", "test", {passing}), OkStatus());
  EXPECT_EQ(OpenLog("error", "text", "test", {passing, fatal}), fatal);
}

}  // namespace
}  // namespace ems
