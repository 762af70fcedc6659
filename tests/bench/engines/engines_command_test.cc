// What must hold: the command runs a connector's script, shows its figures, judges its gates, and
// says what the script said when it fails. The scripts here only write documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "tests/bench/harness/run_command.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class EnginesCommandTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  // Of every connector.
  void WriteScript(const std::string& body) const {
    for (const char* const script : {"/python_engines.py", "/llama_cpp.py", "/python_context.py"})
      std::ofstream(folder_ + script) << "import json, sys\n" << body;
  }
  CommandOutcome RunCommand(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"engines", "--scripts", folder_});
    return RunBench(AddEnginesCommand, std::move(arguments));
  }
  static std::string Writes(const std::string& document) {
    return "path = sys.argv[sys.argv.index('--json') + 1]\nopen(path, 'w').write('''" + document +
           "''')\n";
  }
  const ::ems::testing::TempPath path_{"engines"};
  const std::string& folder_ = path_.path();
};

TEST_F(EnginesCommandTest, FiguresAreShownAndWritten) {
  WriteScript(Writes(R"({"figures": {"load": 7.25, "submits": 480}})"));
  const std::string path = folder_ + "/out.json";
  const CommandOutcome outcome = RunCommand({"--json", path});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("7.25"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  EXPECT_EQ(json["lmcache"]["submits"], 480);
}

TEST_F(EnginesCommandTest, GatesAreJudgedWhenAskedFor) {
  WriteScript(Writes(R"({"figures": {"load": 0.8, "submit": 120}, "gates": [
    {"name": "load", "op": ">=", "bound": 0.7}, {"name": "submit", "op": "<=", "bound": 100},
    {"name": "forgotten", "op": ">=", "bound": 0}]})"));
  EXPECT_EQ(RunCommand({}).code, kExitOk);
  const CommandOutcome outcome = RunCommand({"--gate"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.text, HasSubstr("gate load 0.8 >= 0.7 pass"));
  EXPECT_THAT(outcome.text, HasSubstr("gate submit 120 <= 100 fail"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("forgotten 0 >= 0 pass")));
}

TEST_F(EnginesCommandTest, ExactGatesAreThoseThatSaySo) {
  WriteScript(Writes(R"({"figures": {"misses": 0, "ratio": 9}, "gates": [
    {"name": "misses", "op": "<=", "bound": 0, "kind": "exact"},
    {"name": "ratio", "op": "<=", "bound": 1, "kind": "timed"}]})"));
  const CommandOutcome outcome = RunCommand({"--gate", "exact"});
  EXPECT_EQ(outcome.code, kExitOk) << outcome.errors;
  EXPECT_THAT(outcome.text, HasSubstr("gate misses 0 <= 0 pass"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("gate ratio")));
}

TEST_F(EnginesCommandTest, QuickIsPassedOn) {
  WriteScript("if '--quick' not in sys.argv: sys.exit('not quick')\n" +
              Writes(R"({"figures": {}})"));
  EXPECT_EQ(RunCommand({"--quick"}).code, kExitOk);
  EXPECT_EQ(RunCommand({}).code, kExitFailed);
}

TEST_F(EnginesCommandTest, FailedScriptIsQuoted) {
  WriteScript("sys.exit('wrong bytes')\n");
  const CommandOutcome outcome = RunCommand({});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.errors, HasSubstr("wrong bytes"));
}

TEST_F(EnginesCommandTest, ScriptWithoutFiguresIsAnError) {
  WriteScript(Writes("nothing"));
  EXPECT_EQ(RunCommand({}).code, kExitFailed);
}

TEST_F(EnginesCommandTest, NonsenseIsAUsageError) {
  EXPECT_FALSE(RunCommand({"--connectors", "chair"}).parsed);
  EXPECT_FALSE(RunCommand({"--python", "/nowhere/python"}).parsed);
}

}  // namespace
}  // namespace ems::bench
