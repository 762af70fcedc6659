// What must hold: a version goes through its life by the command line, with exit codes that scripts
// can use and errors that say what to do.
#include <cstdlib>
#include <filesystem>

#include "tests/support/http_script.h"
#include "tests/support/memory_model.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ModelCommandsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = ::testing::TempDir() + "ems_models_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    auto started =
        testing::Cluster::Start({.servers = 2,
                                 .controller_flags = {},
                                 .server_flags = {"--set", "models.file_root=" + root_}});
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    cluster_ = std::move(*started);
    testing::WriteFiles(root_ + "/m", files_);
  }
  static void TearDownTestSuite() {
    cluster_.reset();
    std::filesystem::remove_all(root_);
  }
  static testing::ProgramOutput Run(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--controller", cluster_->controller_address(), "model"});
    const auto ran = testing::RunProgram("emsctl", flags, std::chrono::seconds(60));
    EXPECT_TRUE(ran.ok()) << ToString(ran.status());
    return ran.value_or(testing::ProgramOutput{.exit_code = -1, .out = {}});
  }
  static nlohmann::json RunJson(std::vector<std::string> flags, int exit_code = 0) {
    flags.emplace_back("--json");
    const testing::ProgramOutput ran = Run(std::move(flags));
    EXPECT_EQ(ran.exit_code, exit_code) << ran.out;
    auto json = nlohmann::json::parse(ran.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << ran.out;
    return json;
  }

  static inline std::string root_;
  static inline std::unique_ptr<testing::Cluster> cluster_;
  static inline const testing::ModelFiles files_ = {
      {"config.json", "{}"},
      {"model.safetensors", testing::TensorFile({{.name = "a", .shape = {1000, 512}}})}};
};

TEST_F(ModelCommandsTest, TheLifeOfAVersion) {
  const uint64_t bytes = files_.at("config.json").size() + files_.at("model.safetensors").size();
  EXPECT_EQ(RunJson({"add", "m@v1", root_ + "/m", "--block", "256KiB"})["bytes"], bytes);
  EXPECT_THAT(Run({"list"}).out, HasSubstr("never"));
  EXPECT_EQ(RunJson({"check", "m"}, 1)["absent_bytes"], bytes) << "exit 1: not all is there";
  const auto fetched = RunJson({"prefetch", "m@v1", "--wait"});
  EXPECT_EQ(fetched["job"]["state"], "done");
  EXPECT_EQ(fetched["job"]["source_bytes"], bytes);
  EXPECT_EQ(RunJson({"check", "m"})["dram_bytes"], bytes);
  EXPECT_THAT(Run({"check", "m"}).out, HasSubstr("100.0 %"));
  EXPECT_THAT(Run({"show", "m"}).out, HasSubstr("model.safetensors"));
  EXPECT_EQ(RunJson({"show", "m"})["manifest"]["files"].size(), 2U);
  const auto loaded = RunJson({"load", "m", root_ + "/out", "--no-source", "--verify"});
  EXPECT_EQ(loaded["bytes"], bytes);
  EXPECT_EQ(loaded["source_bytes"], 0);
  for (const auto& [path, content] : files_)
    EXPECT_TRUE(testing::ReadFile(root_ + "/out/" + path) == content) << path;
  EXPECT_THAT(Run({"load", "m", "-", "--include", "*.safetensors"}).out, HasSubstr("from DRAM"));

  EXPECT_EQ(RunJson({"pin", "m@v1"})["pinned"], true);
  const testing::ProgramOutput refused = Run({"delete", "m@v1"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("pinned"));
  EXPECT_EQ(RunJson({"unpin", "m@v1"})["pinned"], false);
  EXPECT_EQ(Run({"cancel", "m@v1"}).exit_code, 0);
  EXPECT_EQ(RunJson({"delete", "m@v1"})["deleted"], "m@v1");
  const testing::ProgramOutput gone = Run({"show", "m@v1"});
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_THAT(gone.out, HasSubstr("NOT_FOUND"));
}

TEST_F(ModelCommandsTest, WrongFlagsAreUsageErrors) {
  EXPECT_EQ(Run({}).exit_code, 2);
  EXPECT_EQ(Run({"add", "m", root_ + "/m"}).exit_code, 2) << "no version";
  EXPECT_EQ(Run({"add", "m@v", root_ + "/m", "--block", "much"}).exit_code, 2);
  EXPECT_EQ(Run({"show", "no spaces"}).exit_code, 2);
  EXPECT_EQ(Run({"delete", "m"}).exit_code, 2) << "no version";
  EXPECT_EQ(Run({"load", "m"}).exit_code, 2) << "no folder";
}

TEST_F(ModelCommandsTest, ObjectStoresGetSignedRequestsAndNobodySeesTheSecret) {
  testing::HttpScript store([](const testing::ScriptRequest&) {
    return testing::Reply(403, {"Content-Type: application/xml"},
                          "<Error><Code>AccessDenied</Code><Message>no</Message></Error>");
  });
  const std::string url = "s3://bucket/m?endpoint=" + store.origin();
  ASSERT_EQ(setenv("AWS_ACCESS_KEY_ID", "AKIDENV", 1), 0);
  ASSERT_EQ(setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t-of-env", 1), 0);
  const testing::ProgramOutput by_env = Run({"add", "s@v1", url});
  unsetenv("AWS_ACCESS_KEY_ID");
  unsetenv("AWS_SECRET_ACCESS_KEY");
  EXPECT_EQ(by_env.exit_code, 1);
  EXPECT_THAT(by_env.out, HasSubstr("AccessDenied"));
  EXPECT_THAT(by_env.out, Not(HasSubstr("s3cr3t")));

  const std::string keys = root_ + "/credentials";
  testing::WriteFiles(root_, {{"credentials",
                               "[team]\naws_access_key_id = AKIDFILE\n"
                               "aws_secret_access_key = s3cr3t-of-file\n"}});
  const std::vector<std::string> by_file = {"add", "s@v1",          url,   "--credentials-file",
                                            keys,  "--credentials", "team"};
  std::filesystem::permissions(keys, std::filesystem::perms(0644));
  const testing::ProgramOutput open_file = Run(by_file);
  EXPECT_EQ(open_file.exit_code, 1);
  EXPECT_THAT(open_file.out, HasSubstr("PERMISSION_DENIED"));
  std::filesystem::permissions(keys, std::filesystem::perms(0600));
  EXPECT_EQ(Run(by_file).exit_code, 1);

  const auto requests = store.requests();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_THAT(requests[0].Header("authorization"), HasSubstr("Credential=AKIDENV/"));
  EXPECT_THAT(requests[1].Header("authorization"), HasSubstr("Credential=AKIDFILE/"));
}

TEST_F(ModelCommandsTest, ErrorsNameWhatIsWrong) {
  EXPECT_THAT(Run({"add", "m@v", root_ + "/nowhere"}).out, HasSubstr("nowhere"));
  EXPECT_THAT(Run({"prefetch", "strange"}).out, HasSubstr("no model strange"));
  const testing::ProgramOutput keys =
      Run({"add", "m@v", "s3://bucket/x?endpoint=http://127.0.0.1:1", "--credentials-file",
           root_ + "/no-such-file", "--credentials", "team"});
  EXPECT_EQ(keys.exit_code, 3);
  EXPECT_THAT(keys.out, HasSubstr("no-such-file"));
}

TEST_F(ModelCommandsTest, ChangesAreMadeInTheClusterThatIsMeantAndNameIt) {
  const std::string own = RunJson({"add", "c@v1", root_ + "/m"})["cluster"];
  ASSERT_EQ(own.size(), 16U);
  const std::string other = (own[0] == '1' ? "2" : "1") + own.substr(1);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"add", "c@v2", root_ + "/m"},
                                             {"pin", "c@v1"},
                                             {"prefetch", "c@v1"},
                                             {"delete", "c@v1"}}) {
    std::vector<std::string> flags = command;
    flags.insert(flags.end(), {"--cluster", other});
    const testing::ProgramOutput refused = Run(flags);
    EXPECT_EQ(refused.exit_code, 1) << command[0];
    EXPECT_THAT(refused.out, HasSubstr(own)) << command[0];
    EXPECT_THAT(refused.out, HasSubstr(other)) << command[0];
  }
  EXPECT_EQ(RunJson({"pin", "c@v1", "--cluster", own})["cluster"], own);
  EXPECT_EQ(RunJson({"unpin", "c@v1"})["cluster"], own);
  EXPECT_THAT(Run({"delete", "c@v1"}).out, HasSubstr("cluster " + own));
}

}  // namespace
}  // namespace ems::emsctl
