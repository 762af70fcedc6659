// What must hold: files come back byte for byte, misses and conflicts exit with 1 and say so, a
// failed get leaves no file.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/self_verifying.h"
#include "tests/tools/emsctl/emsctl_test.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

class ObjectCommandsTest : public EmsctlTest {
 protected:
  static std::string Path(const std::string& name) { return cluster_->folder() + "/" + name; }
  static std::string WriteFile(const std::string& name, const std::string& value) {
    std::ofstream(Path(name), std::ios::binary) << value;
    return Path(name);
  }
  static std::string Slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(ObjectCommandsTest, FilesComeBackByteForByte) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{70'000}, size_t{5} << 20}) {
    const std::string key = "file/" + std::to_string(bytes);
    const std::string value = testing::MakeValue("default", key, 1, bytes);
    const std::string in = WriteFile("in", value);
    ASSERT_EQ(Run({"put", key, in}).exit_code, 0);
    ASSERT_EQ(Run({"get", key, Path("out")}).exit_code, 0);
    EXPECT_EQ(Slurp(Path("out")), value) << bytes;
    EXPECT_EQ(RunJson({"stat", key})["bytes"], bytes);
  }
}

TEST_F(ObjectCommandsTest, GetWithoutAFileWritesToStandardOutput) {
  ASSERT_EQ(Run({"put", "text", WriteFile("text", "hello\n")}).exit_code, 0);
  EXPECT_EQ(Run({"get", "text"}).out, "hello\n");
  EXPECT_EQ(Run({"get", "text", "-"}).out, "hello\n");
}

TEST_F(ObjectCommandsTest, OtherContentNeedsOverwrite) {
  ASSERT_EQ(Run({"put", "k", WriteFile("v1", "one")}).exit_code, 0);
  EXPECT_EQ(Run({"put", "k", Path("v1")}).exit_code, 0);  // the same again stores nothing
  const auto refused = Run({"put", "k", WriteFile("v2", "two")});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("--overwrite"));
  EXPECT_EQ(Run({"get", "k"}).out, "one");
  EXPECT_EQ(Run({"put", "k", Path("v2"), "--overwrite"}).exit_code, 0);
  EXPECT_EQ(Run({"get", "k"}).out, "two");
}

TEST_F(ObjectCommandsTest, MissesExitWithThreeAndLeaveNoFile) {
  const auto ran = Run({"get", "absent", Path("never")});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_THAT(ran.out, HasSubstr("\"absent\" not found"));
  EXPECT_FALSE(std::filesystem::exists(Path("never")));
  EXPECT_EQ(Run({"stat", "absent"}).exit_code, 3);
  EXPECT_EQ(Run({"exists", "absent"}).exit_code, 3);
  EXPECT_EQ(Run({"rm", "absent"}).exit_code, 3);
}

TEST_F(ObjectCommandsTest, ExistsAndRmAnswerForEachKey) {
  ASSERT_EQ(Run({"put", "here", WriteFile("here", "x")}).exit_code, 0);
  const auto exists = Run({"exists", "here", "gone"});
  EXPECT_EQ(exists.exit_code, 3);
  EXPECT_THAT(exists.out, HasSubstr("here  exists"));
  EXPECT_THAT(exists.out, HasSubstr("gone  not found"));
  EXPECT_EQ(Run({"exists", "here"}).exit_code, 0);
  EXPECT_EQ(Run({"rm", "here"}).exit_code, 0);
  EXPECT_EQ(Run({"exists", "here"}).exit_code, 3);
}

TEST_F(ObjectCommandsTest, UnknownNamespaceMissingFileAndLongKeyAreSaid) {
  const auto nowhere = Run({"--namespace", "nowhere", "--timeout", "1", "get", "k"});
  EXPECT_EQ(nowhere.exit_code, 3);
  EXPECT_THAT(nowhere.out, HasSubstr("no namespace nowhere"));
  EXPECT_THAT(Run({"put", "k", Path("no-such-file")}).out, HasSubstr("no-such-file"));
  const auto long_key = Run({"put", std::string(513, 'k'), WriteFile("v", "v")});
  EXPECT_EQ(long_key.exit_code, 1);
  EXPECT_THAT(long_key.out, HasSubstr("1 to 512"));
}

TEST_F(ObjectCommandsTest, NothingIsDoneInAnotherClusterThanTheOneThatIsMeant) {
  ASSERT_EQ(Run({"put", "kept", WriteFile("kept", "x")}).exit_code, 0);
  ExpectRefused({"put", "theirs", Path("kept")});
  ExpectRefused({"rm", "kept"});
  ExpectRefused({"get", "kept"});
  EXPECT_EQ(Run({"exists", "kept"}).exit_code, 0);
  EXPECT_EQ(Run({"exists", "theirs"}).exit_code, 3);
}

}  // namespace
}  // namespace ems::emsctl
