// What must hold: a version goes through its life by the command line, with exit codes that scripts
// can use and errors that say what to do.
#include <filesystem>

#include "tests/support/memory_model.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(Run({"ls"}).out, HasSubstr("never"));
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
  const testing::ProgramOutput refused = Run({"rm", "m@v1"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("pinned"));
  EXPECT_EQ(RunJson({"unpin", "m@v1"})["pinned"], false);
  EXPECT_EQ(Run({"cancel", "m@v1"}).exit_code, 0);
  EXPECT_EQ(RunJson({"rm", "m@v1"})["removed"], "m@v1");
  const testing::ProgramOutput gone = Run({"show", "m@v1"});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.out, HasSubstr("NOT_FOUND"));
}

TEST_F(ModelCommandsTest, WrongFlagsAreUsageErrors) {
  EXPECT_EQ(Run({}).exit_code, 2);
  EXPECT_EQ(Run({"add", "m", root_ + "/m"}).exit_code, 2) << "no version";
  EXPECT_EQ(Run({"add", "m@v", root_ + "/m", "--block", "much"}).exit_code, 2);
  EXPECT_EQ(Run({"show", "no spaces"}).exit_code, 2);
  EXPECT_EQ(Run({"rm", "m"}).exit_code, 2) << "no version";
  EXPECT_EQ(Run({"load", "m"}).exit_code, 2) << "no folder";
}

TEST_F(ModelCommandsTest, ErrorsNameWhatIsWrong) {
  EXPECT_THAT(Run({"add", "m@v", root_ + "/nowhere"}).out, HasSubstr("nowhere"));
  EXPECT_THAT(Run({"prefetch", "strange"}).out, HasSubstr("no model strange"));
  const testing::ProgramOutput keys =
      Run({"add", "m@v", "s3://bucket/x?endpoint=http://127.0.0.1:1", "--credentials-file",
           root_ + "/no-such-file", "--credentials", "team"});
  EXPECT_EQ(keys.exit_code, 1);
  EXPECT_THAT(keys.out, HasSubstr("no-such-file"));
}

}  // namespace
}  // namespace ems::emsctl
