// What must hold: every command has the same options, tells the same exit codes, and says why it
// does not run.
#include "bench/harness/bench_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/harness/run_command.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

struct Flags : ClusterFlags {
  std::string what = "work";
};

Result<std::string> MakePlan(const Flags& flags) {
  if (flags.what == "nonsense") return Error(StatusCode::kInvalidArgument, "--what {}", flags.what);
  return flags.what;
}

Status Work(const std::string& what, Report* report) {
  report->Print(what + "\n");
  report->AtLeast(kTimed, "speed", 1, 2);
  return what == "error" ? Error(StatusCode::kUnavailable, "it broke") : OkStatus();
}

void AddWorkCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* command = program->AddCommand("work", "Do it");
  AddClusterOptions(command, flags.get());
  command->AddOption("--what", &flags->what, "What to do");
  AddCommonOptions(command, flags.get(),
                   {.quick = "At once", .about = "About.", .examples = {"work"}, .has_plot = true});
  command->SetRun([=] { return RunPlanned("work", *flags, MakePlan(*flags), Work); });
}

CommandOutcome RunWork(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "work");
  return RunBench(AddWorkCommand, std::move(arguments));
}

TEST(BenchCommandTest, WorkGoesThroughAReportToAnExitCode) {
  const CommandOutcome good = RunWork({"--quick", "--shm-token", "t", "--controller", "c:1"});
  EXPECT_EQ(good.code, kExitOk) << good.errors;
  EXPECT_THAT(good.text, ::testing::StartsWith("work\n"));
  EXPECT_EQ(RunWork({"--gate"}).code, kExitFailed);
  const CommandOutcome bad = RunWork({"--what", "error"});
  EXPECT_EQ(bad.code, kExitFailed);
  EXPECT_EQ(bad.errors, "ems-bench work: UNAVAILABLE: it broke\n");
}

TEST(BenchCommandTest, FlagsThatMakeNoSenseAreAUsageError) {
  const CommandOutcome outcome = RunWork({"--what", "nonsense"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_EQ(outcome.errors, "ems-bench work: --what nonsense\n");
  EXPECT_EQ(outcome.text, "");
}

TEST(BenchCommandTest, AnOptionThatIsGoneNamesWhatDrawsNow) {
  const CommandOutcome outcome = RunWork({"--plot", "work.svg"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.errors, HasSubstr("bench/plot.py FIGURES.json work.svg"));
}

TEST(BenchCommandTest, HelpEndsWithExitCodesAndExamples) {
  const CommandOutcome outcome = RunWork({"--help"});
  EXPECT_FALSE(outcome.parsed);
  EXPECT_THAT(outcome.text,
              HasSubstr("About.\nExit codes: 0 all went well; 1 an error, a wrong byte or a failed "
                        "gate; 2 usage.\nExamples:\n  ems-bench work"));
  EXPECT_THAT(outcome.text, HasSubstr("At once"));
}

TEST(GateOptionTest, TakesNothingExactOrAll) {
  // Nothing: a usage error.
  const auto parse = [](std::vector<std::string> arguments) -> std::optional<GateSet> {
    Command program({.name = "ems-bench"});
    CommonFlags flags;
    AddCommonOptions(&program, &flags, {.quick = "Seconds only"});
    ::testing::internal::CaptureStderr();
    const auto exit_code = program.Parse(std::move(arguments));
    ::testing::internal::GetCapturedStderr();
    if (exit_code.has_value()) return std::nullopt;
    return flags.gates;
  };
  EXPECT_EQ(parse({}), GateSet::kNone);
  EXPECT_EQ(parse({"--gate"}), GateSet::kAll);
  EXPECT_EQ(parse({"--gate", "--quick"}), GateSet::kAll);
  EXPECT_EQ(parse({"--gate", "all"}), GateSet::kAll);
  EXPECT_EQ(parse({"--gate", "exact", "--quick"}), GateSet::kExact);
  EXPECT_EQ(parse({"--gate", "some"}), std::nullopt);
}

}  // namespace
}  // namespace ems::bench
