// What must hold: each daemon refuses a bad start with the right exit code (1 failed, 2 usage) and
// a message that names what, where and what is allowed; the sample configurations are good ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/paths.h"

namespace ems::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// A YAML file that lives as long as this.
class ConfigFile final {
 public:
  explicit ConfigFile(const std::string& text) {
    char path[] = "/tmp/ems-config-XXXXXX";
    const int fd = mkstemp(path);
    path_ = path;
    std::ofstream(path_) << text;
    if (fd >= 0) close(fd);
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class DaemonCliTest : public ::testing::TestWithParam<const char*> {
 protected:
  static ProgramOutput Run(const std::vector<std::string>& flags) {
    Result<ProgramOutput> output = RunProgram(GetParam(), flags);
    EXPECT_TRUE(output.ok()) << output.status();
    return output.ok() ? *output : ProgramOutput();
  }
};

TEST_P(DaemonCliTest, HelpAndVersionSucceed) {
  const ProgramOutput help = Run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* flag :
       {"--config", "--set", "--ready-file", "--check-config", "--help-config", "--version"}) {
    EXPECT_THAT(help.out, HasSubstr(flag));
  }
  const ProgramOutput version = Run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, ::testing::ContainsRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST_P(DaemonCliTest, HelpConfigNamesEachOption) {
  const ProgramOutput help = Run({"--help-config"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* option : {"listen", "http_listen", "data_dir", "log_level"})
    EXPECT_THAT(help.out, HasSubstr(option));
}

TEST_P(DaemonCliTest, AnUnknownFlagIsAUsageError) {
  const ProgramOutput output = Run({"--colour"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.out, HasSubstr("colour"));
}

TEST_P(DaemonCliTest, AnUnknownKeyNamesFileAndLine) {
  const ConfigFile config("data_dir: /tmp/ems-never-made\nlog_level: info\nlog_levle: debug\n");
  const ProgramOutput output = Run({"--config", config.path(), "--check-config"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.out, HasSubstr(config.path() + ":3"));
  EXPECT_THAT(output.out, HasSubstr("log_levle"));
}

TEST_P(DaemonCliTest, AWordThatIsNotAllowedNamesThoseThatAre) {
  const ConfigFile config("data_dir: /tmp/ems-never-made\nlog_level: loud\n");
  const ProgramOutput output = Run({"--config", config.path(), "--check-config"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.out,
              AllOf(HasSubstr(config.path() + ":2"), HasSubstr("loud"), HasSubstr("warn")));
}

TEST_P(DaemonCliTest, AMissingFileIsNamed) {
  const ProgramOutput output = Run({"--config", "/tmp/ems-no-such-file.yaml", "--check-config"});
  EXPECT_THAT(output.exit_code, AnyOf(1, 2));
  EXPECT_THAT(output.out, HasSubstr("/tmp/ems-no-such-file.yaml"));
}

TEST_P(DaemonCliTest, AnAddressWithoutAPortNamesFileAndLineAndWhatToWrite) {
  const ConfigFile config("data_dir: /tmp/ems-never-made\nlisten: 127.0.0.1\n");
  for (const auto& flags : {std::vector<std::string>{"--config", config.path(), "--check-config"},
                            std::vector<std::string>{"--config", config.path()}}) {
    const ProgramOutput output = Run(flags);
    EXPECT_EQ(output.exit_code, 2);
    EXPECT_THAT(output.out, AllOf(HasSubstr(config.path() + ":2: \"listen\""),
                                  HasSubstr("write 127.0.0.1:PORT")));
  }
}

TEST_P(DaemonCliTest, AFolderThatThisMachineHasNotIsAWarning) {
  std::vector<std::string> flags = {"--set", "data_dir=/tmp/ems-never/made", "--check-config"};
  const std::string program = GetParam();
  if (program == "mp-server") flags.insert(flags.end(), {"--set", "name=a"});
  const ProgramOutput output = Run(flags);
  EXPECT_EQ(output.exit_code, 0) << output.out;
  EXPECT_THAT(output.out, HasSubstr(program + ": warning: on this machine \"data_dir\" is "
                                              "/tmp/ems-never/made: of it only /tmp exists"));
  EXPECT_FALSE(std::filesystem::exists("/tmp/ems-never"));
}

TEST_P(DaemonCliTest, TheSampleConfigurationIsGood) {
  const std::string name = GetParam() == std::string_view("mp-server") ? "server" : "controller";
  const std::string path = testing::SourceDir() + "/deploy/config/" + name + ".yaml";
  const ProgramOutput output = Run({"--config", path, "--check-config"});
  EXPECT_EQ(output.exit_code, 0) << output.out;
  EXPECT_THAT(output.out, HasSubstr("data_dir"));
}

TEST_P(DaemonCliTest, WhatTheCheckPrintsIsAConfigurationThatSaysTheSame) {
  const std::string name = GetParam() == std::string_view("mp-server") ? "server" : "controller";
  const std::string path = testing::SourceDir() + "/deploy/config/" + name + ".yaml";
  // What this machine has, as warnings are printed, too.
  std::vector<std::string> flags = {"--config", path, "--set", "data_dir=/tmp", "--check-config"};
  if (name == "server")
    flags.insert(flags.end(), {"--set", "dram.bytes=64MiB", "--set", "ssd.capacity_bytes=0"});
  const ProgramOutput printed = Run(flags);
  ASSERT_EQ(printed.exit_code, 0) << printed.out;
  const ConfigFile again(printed.out);
  const ProgramOutput same = Run({"--config", again.path(), "--check-config"});
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_EQ(same.out, printed.out);
}

INSTANTIATE_TEST_SUITE_P(Daemons, DaemonCliTest, ::testing::Values("mp-controller", "mp-server"),
                         [](const auto& param) {
                           return param.param == std::string_view("mp-server") ? "Server"
                                                                               : "Controller";
                         });

TEST(ServerConfigTest, ANumberOutOfRangeNamesTheRange) {
  const ConfigFile config("name: a\ndata_dir: /tmp/ems-never-made\ndram:\n  bytes: 1KiB\n");
  const Result<ProgramOutput> output =
      RunProgram("mp-server", {"--config", config.path(), "--check-config"});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->exit_code, 2);
  EXPECT_THAT(output->out, AllOf(HasSubstr(config.path() + ":4"), HasSubstr("bytes")));
}

TEST(ServerConfigTest, AValueThatCannotWorkIsRefusedAtTheCheckAndAtTheStart) {
  const struct {
    const char* set;
    const char* says;
  } cases[] = {
      {"controller=localhost", "\"controller\": address \"localhost\" is not host:port"},
      {"kv_events.listen=5557", "write HOST:5557"},
      {"listen=127.0.0.1:70000", "0 to 65535"},
      {"unix_mode=999", "write such as 0660"},
      {"listen=0.0.0.0:0", "set advertise"},
      {"shm.uids=root", "id -u"},
  };
  for (const auto& [set, says] : cases) {
    std::vector<std::string> flags = {"--set", "name=a", "--set", "data_dir=/tmp/ems-never-made",
                                      "--set", set};
    for (const bool check : {false, true}) {
      if (check) flags.push_back("--check-config");
      const Result<ProgramOutput> output = RunProgram("mp-server", flags);
      ASSERT_TRUE(output.ok()) << set << ": " << output.status();
      EXPECT_EQ(output->exit_code, 2) << set << ": " << output->out;
      EXPECT_THAT(output->out, HasSubstr(says)) << set;
    }
  }
  EXPECT_FALSE(std::filesystem::exists("/tmp/ems-never-made"));
}

TEST(ServerConfigTest, APoolLargerThanTheMachineIsAWarningAtTheCheckAndAnErrorAtTheStart) {
  std::vector<std::string> flags = {
      "--set", "name=a", "--set", "data_dir=/tmp/ems-never-made", "--set", "dram.bytes=16TiB"};
  const Result<ProgramOutput> started = RunProgram("mp-server", flags);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->exit_code, 2) << started->out;
  EXPECT_THAT(started->out, HasSubstr("\"dram.bytes\" is 16 TiB: this machine has"));
  flags.push_back("--check-config");
  const Result<ProgramOutput> checked = RunProgram("mp-server", flags);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->exit_code, 0) << checked->out;
  EXPECT_THAT(checked->out, HasSubstr("warning: on this machine \"dram.bytes\""));
}

TEST(PdcConfigTest, AValueThatCannotWorkIsRefusedAtTheCheckAndAtTheStart) {
  const struct {
    std::vector<std::string> flags;
    const char* says;
  } cases[] = {
      {{"--set", "pool.controller=localhost"}, "\"pool.controller\": address \"localhost\""},
      {{"--set", "http_listen=8000"}, "write HOST:8000"},
      {{"--set", "role=router"}, "role router needs decode_peers"},
      {{"--set", "http_listen="}, "role all needs http_listen"},
      {{"--set", "role=decode", "--set", "prefill_peers=a:1 b"}, "write b:PORT"},
      {{"--set", "model.ems=x"}, "pool.controller is not set"},
  };
  for (const auto& [flags, says] : cases) {
    std::vector<std::string> all = flags;
    for (const bool check : {false, true}) {
      if (check) all.push_back("--check-config");
      const Result<ProgramOutput> output = RunProgram("ems-pdc", all);
      ASSERT_TRUE(output.ok()) << flags[1] << ": " << output.status();
      EXPECT_EQ(output->exit_code, 2) << flags[1] << ": " << output->out;
      EXPECT_THAT(output->out, HasSubstr(says)) << flags[1];
    }
  }
}

TEST(ServerConfigTest, ARequiredOptionThatIsMissingIsNamed) {
  const Result<ProgramOutput> output =
      RunProgram("mp-server", {"--set", "name=a", "--check-config"});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->exit_code, 2);
  EXPECT_THAT(output->out, HasSubstr("data_dir"));
}

TEST(DataDirTest, ASecondDaemonOnTheSameFolderExitsAndTheFirstGoesOn) {
  Result<std::unique_ptr<Cluster>> cluster =
      Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (Daemon* first : {&(*cluster)->controller(), &(*cluster)->server(0)}) {
    SCOPED_TRACE(first->options().program);
    const Result<ProgramOutput> second =
        RunProgram(first->options().program, first->options().flags);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(second->exit_code, 1) << second->out;
    EXPECT_THAT(second->out, HasSubstr((*cluster)->folder()));
    EXPECT_TRUE(first->WaitExit(Duration(0)).status().code() == StatusCode::kDeadlineExceeded)
        << "the first one ended";
  }
  Result<std::unique_ptr<Client>> client = (*cluster)->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->Put("key", std::string_view("value")), OkStatus());
}

}  // namespace
}  // namespace ems::testing
