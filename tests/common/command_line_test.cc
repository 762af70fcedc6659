// What must hold: values arrive with their types, a wrong call is refused with exit code 2 and a
// message, --help names everything, and the command that was chosen is the one that runs.
#include "common/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace ems {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  std::optional<int> code;
  std::string out, errors;
};

Outcome ParseWords(Command* program, std::vector<std::string> words) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = program->Parse(std::move(words));
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

// One program with an option of each kind.
struct Sample {
  std::string text = "a";
  int number = 1;
  uint32_t small = 2;
  uint64_t large = 3;
  double real = 0.5;
  std::optional<std::string> maybe_text;
  std::optional<double> maybe_real;
  std::vector<std::string> words = {"x", "y"};
  std::vector<int> numbers;
  std::vector<uint32_t> sizes;
  std::vector<double> shares;
  std::string gate;
  bool quick = false, verify = true;
  Command program{{.name = "tool", .about = "Does things", .version = "1.2", .footer = "The end"}};

  Sample() {
    program.AddOption("--text", &text, "Words", {.check = OneOf{{"a", "b"}}});
    program.AddOption("--number", &number, "Count", {.check = InRange{1, 9}});
    program.AddOption("--small", &small, "Size", {.check = InRange{1U, 64U}});
    program.AddOption("--large", &large, "Seed", {.show_default = false});
    program.AddOption("--real", &real, "Share", {.check = InRange{0.0, 1.0}});
    program.AddOption("--maybe-text", &maybe_text, "Note");
    program.AddOption("--maybe-real", &maybe_real, "Rate");
    program.AddOption("--words", &words, "Which", {.delimiter = ','});
    program.AddOption("--numbers", &numbers, "Some");
    program.AddOption("--sizes", &sizes, "More", {.check = InRange{1, 9}, .delimiter = ','});
    program.AddOption("--shares", &shares, "Parts", {.delimiter = ','});
    program.AddOption("--gate", &gate, "Judge",
                      {.check = OneOf{{"exact", "all"}}, .value_if_bare = "all"});
    program.AddFlag("--quick", &quick, "Less");
    program.AddFlag("--verify,!--no-verify", &verify, "Compare");
  }
  Outcome Parse(std::vector<std::string> words_given) {
    return ParseWords(&program, std::move(words_given));
  }
};

TEST(CommandLineTest, ValuesArriveWithTheirTypes) {
  Sample s;
  const Outcome outcome = s.Parse({"--text=b",
                                   "--number",
                                   "7",
                                   "--small",
                                   "64",
                                   "--large",
                                   "18446744073709551615",
                                   "--real",
                                   "1e-3",
                                   "--maybe-text",
                                   "",
                                   "--maybe-real",
                                   "2.5",
                                   "--words",
                                   "p,q",
                                   "--numbers",
                                   "-1",
                                   "2",
                                   "--sizes",
                                   "3,4",
                                   "--sizes",
                                   "5",
                                   "--shares",
                                   "0.5,1",
                                   "--quick",
                                   "--no-verify"});
  EXPECT_EQ(outcome.code, std::nullopt) << outcome.errors;
  EXPECT_EQ(s.text, "b");
  EXPECT_EQ(s.number, 7);
  EXPECT_EQ(s.small, 64U);
  EXPECT_EQ(s.large, 18446744073709551615U);
  EXPECT_EQ(s.real, 1e-3);
  EXPECT_EQ(s.maybe_text, "");
  EXPECT_EQ(s.maybe_real, 2.5);
  EXPECT_THAT(s.words, ElementsAre("p", "q"));
  EXPECT_THAT(s.numbers, ElementsAre(-1, 2));
  EXPECT_THAT(s.sizes, ElementsAre(3, 4, 5));
  EXPECT_THAT(s.shares, ElementsAre(0.5, 1.0));
  EXPECT_TRUE(s.quick);
  EXPECT_FALSE(s.verify);
}

TEST(CommandLineTest, WithoutArgumentsDefaultsStay) {
  Sample s;
  EXPECT_EQ(s.Parse({}).code, std::nullopt);
  EXPECT_EQ(s.text, "a");
  EXPECT_EQ(s.large, 3U);
  EXPECT_EQ(s.maybe_real, std::nullopt);
  EXPECT_THAT(s.words, ElementsAre("x", "y"));
  EXPECT_THAT(s.sizes, IsEmpty());
  EXPECT_FALSE(s.quick);
  EXPECT_TRUE(s.verify);
}

TEST(CommandLineTest, HelpShowsChecksAndDefaults) {
  Sample s;
  const Outcome outcome = s.Parse({"--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.errors, IsEmpty());
  EXPECT_EQ(outcome.out, R"(Does things
Usage: tool [OPTIONS]

Options:
  -h,--help                   Print this help message and exit
  --version                   Display program version information and exit
  --text TEXT:{a,b}=a         Words
  --number INT:INT in [1 - 9]=1
                              Count
  --small UINT:UINT in [1 - 64]=2
                              Size
  --large UINT                Seed
  --real FLOAT:FLOAT in [0 - 1]=0.5
                              Share
  --maybe-text TEXT           Note
  --maybe-real FLOAT          Rate
  --words TEXT=[x,y] ...      Which
  --numbers INT ...           Some
  --sizes UINT:INT in [1 - 9] ...
                              More
  --shares FLOAT ...          Parts
  --gate [TEXT:{exact,all}]   Judge
  --quick                     Less
  --verify,--no-verify{false} Compare

The end
)");
}

TEST(CommandLineTest, VersionIsPrintedWithTheName) {
  Sample s;
  const Outcome outcome = s.Parse({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "tool 1.2\n");
  Command unversioned({.name = "tool"});
  EXPECT_EQ(ParseWords(&unversioned, {"--version"}).code, 2);
}

TEST(CommandLineTest, WrongValuesAreUsageErrorsThatNameTheOption) {
  const struct {
    std::vector<std::string> words;
    const char* says;
  } cases[] = {
      {{"--text", "c"}, "--text: c not in {a,b}"},
      {{"--number", "10"}, "--number: Value 10 not in range 1 to 9"},
      {{"--number", "few"}, "--number: Value few not in range"},
      {{"--small", "-1"}, "--small"},
      {{"--large", "1x"}, "--large"},
      {{"--real", "1.5"}, "--real: Value 1.5 not in range"},
      {{"--sizes", "3,10"}, "--sizes: Value 10 not in range"},
      {{"--text"}, "--text: 1 required"},
      {{"--gate", "some"}, "--gate: some not in {exact,all}"},
      {{"--colour"}, "--colour"},
      {{"stray"}, "stray"},
  };
  for (const auto& [words, says] : cases) {
    Sample s;
    const Outcome outcome = s.Parse(words);
    EXPECT_EQ(outcome.code, 2) << says;
    EXPECT_THAT(outcome.errors,
                AllOf(HasSubstr(says), HasSubstr("Run with --help for more information.")));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(CommandLineTest, AnOptionMayHaveAValueThatIsLeftOut) {
  const struct {
    std::vector<std::string> words;
    const char* gate;
  } cases[] = {
      {{}, ""},
      {{"--gate"}, "all"},
      {{"--gate", "--quick"}, "all"},
      {{"--gate", "exact", "--quick"}, "exact"},
      {{"--gate=exact"}, "exact"},
  };
  for (const auto& [words, gate] : cases) {
    Sample s;
    EXPECT_EQ(s.Parse(words).code, std::nullopt);
    EXPECT_EQ(s.gate, gate);
    EXPECT_EQ(s.quick, words.size() > 1);
  }
}

TEST(CommandLineTest, PathsHaveToExist) {
  std::string file, folder;
  Command program({.name = "tool"});
  program.AddOption("--file", &file, "", {.check = ExistingFile{}});
  program.AddOption("--folder", &folder, "", {.check = ExistingFolder{}});
  EXPECT_EQ(ParseWords(&program, {"--file", "/proc/self/stat", "--folder", "/proc"}).code,
            std::nullopt);
  EXPECT_EQ(ParseWords(&program, {"--file", "/proc"}).code, 2);
  EXPECT_EQ(ParseWords(&program, {"--folder", "/proc/no such folder"}).code, 2);
}

TEST(CommandLineTest, TheEnvironmentStandsInForAnOption) {
  // One thread, as in every program that reads its command line.
  ::setenv("EMS_COMMAND_LINE_TEST", "from the environment", 1);  // NOLINT(concurrency-mt-unsafe)
  for (const bool given : {false, true}) {
    std::string text = "default";
    Command program({.name = "tool"});
    program.AddOption("--text", &text, "Words", {.environment = "EMS_COMMAND_LINE_TEST"});
    EXPECT_EQ(ParseWords(&program, given ? std::vector<std::string>{"--text", "given"}
                                         : std::vector<std::string>{})
                  .code,
              std::nullopt);
    EXPECT_EQ(text, given ? "given" : "from the environment");
    EXPECT_THAT(ParseWords(&program, {"--help"}).out,
                HasSubstr("--text TEXT=default (Env:EMS_COMMAND_LINE_TEST)"));
  }
  ::unsetenv("EMS_COMMAND_LINE_TEST");  // NOLINT(concurrency-mt-unsafe)
}

TEST(CommandLineTest, ExcludedOptionsAreRefusedTogether) {
  bool on = false, off = false;
  Command program({.name = "tool"});
  program.AddFlag("--on", &on, "");
  program.AddFlag("--off", &off, "");
  program.Exclude("--off", "--on");
  EXPECT_EQ(ParseWords(&program, {"--on"}).code, std::nullopt);
  const Outcome both = ParseWords(&program, {"--on", "--off"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.errors, HasSubstr("excludes"));
  EXPECT_THAT(ParseWords(&program, {"--help"}).out, HasSubstr("--off Excludes: --on"));
}

TEST(CommandLineTest, PositionalArgumentsGoByTheirOrder) {
  std::string key, file = "-";
  std::vector<std::string> more;
  Command program({.name = "tool"});
  program.AddOption("key", &key, "", {.required = true});
  program.AddOption("file", &file, "To read", {.show_default = false});
  program.AddOption("more", &more, "");
  EXPECT_EQ(ParseWords(&program, {}).code, 2);
  EXPECT_EQ(ParseWords(&program, {"k"}).code, std::nullopt);
  EXPECT_EQ(file, "-");
  EXPECT_EQ(ParseWords(&program, {"--", "-k", "f", "m", "n"}).code, std::nullopt);
  EXPECT_EQ(key, "-k");
  EXPECT_EQ(file, "f");
  EXPECT_THAT(more, ElementsAre("m", "n"));
  EXPECT_THAT(ParseWords(&program, {"--help"}).out,
              AllOf(HasSubstr("Usage: tool [OPTIONS] key [file] [more...]"),
                    HasSubstr("  key TEXT REQUIRED")));
}

// A program with commands; `json` is its own option.
struct Commands {
  explicit Commands(bool options_after_command)
      : program({.name = "tool",
                 .footer = "of the tool",
                 .options_after_command = options_after_command}) {
    program.AddFlag("--json", &json, "");
    program.AddCommand("status", "Health")->SetRun([] { return 10; });
    Command* const hidden = program.AddCommand("hidden", "Not for people");
    hidden->Hide();
    hidden->SetRun([] { return 11; });
    Command* const view = program.AddCommand("view", "Who owns what");
    view->SetRun([] { return 12; });
    view->AddCommand("thaw", "Go on")->SetRun([] { return 13; });
    Command* const model = program.AddCommand("model", "Models");
    model->SetAlias("m");
    model->SetFooter("of models");
    model->AddCommand("prefetch", "Load")->SetRun([] { return 14; });
    model->AddCommand("pin", "Keep")->SetRun([] { return 15; });
  }
  // What ran, or the error.
  std::string Run(std::vector<std::string> words) {
    const Outcome outcome = ParseWords(&program, std::move(words));
    return outcome.code ? outcome.errors : std::to_string(program.Run());
  }
  bool json = false;
  Command program;
};

TEST(CommandLineTest, TheInnermostCommandThatIsNamedRuns) {
  for (const auto& [words, ran] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"status"}, "10"},
           {{"hidden"}, "11"},
           {{"view"}, "12"},
           {{"view", "thaw"}, "13"},
           {{"model", "prefetch"}, "14"},
           {{"m", "pin"}, "15"},
           {{"--json", "status"}, "10"}}) {
    EXPECT_EQ(Commands(false).Run(words), ran);
  }
}

TEST(CommandLineTest, OptionsOfTheProgramMayFollowACommandWhenItSaysSo) {
  for (const bool allowed : {false, true}) {
    Commands commands(allowed);
    EXPECT_EQ(commands.Run({"status", "--json"}) == "10", allowed);
    EXPECT_EQ(commands.json, allowed);
  }
}

TEST(CommandLineTest, HelpOfACommandHasItsFooterOrTheOneOfTheProgram) {
  Commands commands(false);
  EXPECT_THAT(ParseWords(&commands.program, {"status", "--help"}).out, HasSubstr("of the tool"));
  EXPECT_THAT(ParseWords(&commands.program, {"m", "--help"}).out,
              AllOf(HasSubstr("Usage: tool model [OPTIONS] SUBCOMMAND"), HasSubstr("of models"),
                    Not(HasSubstr("of the tool"))));
  EXPECT_THAT(ParseWords(&commands.program, {"view", "--help"}).out,
              HasSubstr("Usage: tool view [OPTIONS] [SUBCOMMAND]"));
  EXPECT_THAT(ParseWords(&commands.program, {"--help"}).out,
              AllOf(HasSubstr("model, m"), Not(HasSubstr("hidden"))));
}

TEST(CommandLineTest, AWordThatIsNoCommandIsNamedWithTheNearestAndAll) {
  EXPECT_THAT(Commands(true).Run({"statsu"}),
              StartsWith("tool: there is no command \"statsu\" (did you mean \"status\"?); "
                         "commands here: status, view, model\n"));
  EXPECT_THAT(Commands(true).Run({"--json", "qqqqqqqq", "more"}),
              StartsWith("tool: there is no command \"qqqqqqqq\"; commands here:"));
  EXPECT_THAT(Commands(true).Run({"model", "prefech", "--json"}),
              StartsWith("tool model: there is no command \"prefech\" (did you mean \"prefetch\"?);"
                         " commands here: prefetch, pin\n"));
}

TEST(CommandLineTest, OtherErrorsNameNoCommand) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {}, {"model"}, {"--jsn"}, {"status", "more"}, {"status", "--size"}}) {
    EXPECT_THAT(Commands(true).Run(words),
                AllOf(Not(HasSubstr("no command")), HasSubstr("Run with --help")));
  }
}

TEST(CommandLineDeathTest, DeclarationsThatContradictEachOtherEndTheProcess) {
  bool flag = false;
  Command program({.name = "tool"});
  program.AddFlag("--json", &flag, "");
  EXPECT_DEATH(program.AddFlag("--json", &flag, ""), "json is already added");
  EXPECT_DEATH(program.Exclude("--json", "--table"), "--table");
}

TEST(CommandLineTest, AUsageErrorMayGoElsewhere) {
  std::string said;
  Command program({.name = "tool", .on_usage_error = [&](const auto& text) { said = text; }});
  const Outcome outcome = ParseWords(&program, {"--colour"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(said, HasSubstr("--colour"));
  EXPECT_THAT(outcome.errors, IsEmpty());
  EXPECT_EQ(ParseWords(&program, {"--help"}).code, 0);
}

// What bash offers behind `line`, whose last word is completed, with the script of a program.
std::vector<std::string> Complete(const Command& program, const std::string& line) {
  const std::string script = program.BashCompletion() + "COMP_WORDS=(" + line +
                             ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n" +
                             "_my_tool\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const std::string path =
      ::testing::TempDir() + "/completion." + std::to_string(::getpid()) + ".sh";
  std::ofstream(path) << script;
  std::vector<std::string> words;
  std::FILE* const out = ::popen(("bash --norc " + path + " 2>&1").c_str(), "r");
  if (out == nullptr) return {"no bash"};
  char word[256];
  while (std::fscanf(out, "%255s", word) == 1) words.push_back(word);
  ::pclose(out);
  std::filesystem::remove(path);
  return words;
}

TEST(CommandLineTest, BashCompletesCommandsAndOptionsWhereTheyMayStand) {
  std::string where, name;
  bool all = false;
  Command program({.name = "my-tool", .options_after_command = true});
  program.AddOption("--where", &where, "Address");
  Command* model = program.AddCommand("model", "Models");
  model->SetAlias("m");
  Command* add = model->AddCommand("add", "Add one");
  add->AddOption("name", &name, "Name");
  add->AddFlag("--all", &all, "All");
  model->AddCommand("list", "List them");
  program.AddCommand("secret", "Not shown")->Hide();

  EXPECT_THAT(Complete(program, "my-tool ''"), ElementsAre("m", "model"));
  EXPECT_THAT(Complete(program, "my-tool model l"), ElementsAre("list"));
  EXPECT_THAT(Complete(program, "my-tool --where x m ''"), ElementsAre("add", "list"));
  EXPECT_THAT(Complete(program, "my-tool --where model m"), ElementsAre("m", "model"));
  EXPECT_THAT(Complete(program, "my-tool model add --a"), ElementsAre("--all"));
  EXPECT_THAT(Complete(program, "my-tool model list --"), ElementsAre("--help", "--where"));
  EXPECT_THAT(Complete(program, "my-tool model add /etc/passw"),
              ::testing::Contains("/etc/passwd"));
}

}  // namespace
}  // namespace ems
