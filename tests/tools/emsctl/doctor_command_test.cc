// What must hold: the doctor looks at a real host and a real cluster, names who does not answer,
// and ends in time with nobody there.
#include <filesystem>
#include <fstream>

#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

class DoctorCommandTest : public EmsctlTest {
 protected:
  // Of a document of the doctor.
  static nlohmann::json Check(const nlohmann::json& doctor, const std::string& name) {
    for (const auto& one : doctor["checks"]) {
      if (one["check"] == name) return one;
    }
    return {};
  }
};

TEST_F(DoctorCommandTest, AHealthyClusterPasses) {
  const auto json = RunJson({"doctor"});
  EXPECT_NE(json["result"], "FAIL");
  EXPECT_EQ(Check(json, "cluster")["level"], "OK");
  EXPECT_THAT(Check(json, "server ports")["found"].get<std::string>(), HasSubstr("1 of 1 answer"));
  EXPECT_EQ(Check(json, "versions")["level"], "OK");
  // Controller and server told the time.
  EXPECT_THAT(Check(json, "clocks")["found"].get<std::string>(), HasSubstr("2 compared"));
  EXPECT_EQ(Check(json, "unix socket")["level"], "OK");
  EXPECT_EQ(Check(json, "open ports")["level"], "OK");
}

TEST_F(DoctorCommandTest, WithoutAControllerTheHostIsLookedAtAllTheSame) {
  const auto ran = RunBare({"--controller", "127.0.0.1:1", "--timeout", "1", "doctor"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("FAIL  controller"));
  EXPECT_THAT(ran.out, HasSubstr("huge pages"));
  const auto host = RunBare({"--controller", "127.0.0.1:1", "doctor", "--host"});
  EXPECT_EQ(host.exit_code, 0) << host.out;
  EXPECT_THAT(host.out, ::testing::Not(HasSubstr("controller")));
}

TEST_F(DoctorCommandTest, AServerThatDoesNotAnswerIsNamed) {
  cluster_->server(0).Signal(SIGSTOP);
  const auto ran = Run({"--timeout", "0.5", "doctor"});
  cluster_->server(0).Signal(SIGCONT);
  EXPECT_EQ(ran.exit_code, 1);  // though its port takes connections
  EXPECT_THAT(ran.out, HasSubstr("FAIL  server " + testing::Cluster::ServerName(0)));
}

TEST_F(DoctorCommandTest, TheServersFileIsComparedWithTheHost) {
  const std::string path = cluster_->folder() + "/doctor.yaml";
  std::ofstream(path) << "name: a\ndata_dir: " << cluster_->folder()
                      << "\nunix_path: /nowhere/ems.sock\nssd:\n  capacity_bytes: 1024TiB\n";
  const auto ran = Run({"doctor", "--host", "--config", path, "--set", "dram.bytes=16TiB"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("lower dram.bytes"));
  EXPECT_THAT(ran.out, HasSubstr("lower ssd.capacity_bytes"));
  EXPECT_THAT(ran.out, HasSubstr("WARN  unix socket"));
  EXPECT_EQ(Run({"doctor", "--host", "--config", "/nowhere.yaml"}).exit_code, 2);
}

TEST_F(DoctorCommandTest, AFileThatDoesNotLoadIsAFindingAndTheOthersFollow) {
  const std::string path = cluster_->folder() + "/nameless.yaml";
  std::ofstream(path) << "data_dir: " << cluster_->folder() << "\n";
  const auto ran = Run({"doctor", "--host", "--config", path});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("FAIL  configuration"));
  EXPECT_THAT(ran.out, HasSubstr("name"));
  EXPECT_THAT(ran.out, HasSubstr("huge pages"));
}

}  // namespace
}  // namespace ems::emsctl
