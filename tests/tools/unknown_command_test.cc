// What must hold: a word that is no command is named, with the one that was meant; other errors
// stay as they are.
#include "tools/unknown_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace ems::terminal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What `tool` says to these words.
std::string ErrorOf(std::vector<std::string> words) {
  CLI::App app{"", "tool"};
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--size");
  app.add_subcommand("status");
  app.add_subcommand("hidden")->group("");
  CLI::App* const model = app.add_subcommand("model");
  model->require_subcommand(1);
  model->add_subcommand("prefetch");
  model->add_subcommand("pin");
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return UsageError(&app, error);
  }
  return "";
}

TEST(UnknownCommandTest, AWordThatIsNoCommandIsNamedWithTheNearestAndAll) {
  EXPECT_THAT(ErrorOf({"statsu"}),
              StartsWith("tool: there is no command \"statsu\" (did you mean \"status\"?); "
                         "commands here: status, model\n"));
  EXPECT_THAT(ErrorOf({"--size", "3", "qqqqqqqq", "more"}),
              StartsWith("tool: there is no command \"qqqqqqqq\"; commands here:"));
  EXPECT_THAT(ErrorOf({"model", "prefech", "--size", "3"}),
              StartsWith("tool model: there is no command \"prefech\" (did you mean \"prefetch\"?);"
                         " commands here: prefetch, pin\n"));
}

TEST(UnknownCommandTest, OtherErrorsAreAsCli11SaysThem) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {}, {"model"}, {"--sized"}, {"status", "more"}, {"status", "--size"}}) {
    EXPECT_THAT(ErrorOf(words), Not(HasSubstr("no command")));
    EXPECT_NE(ErrorOf(words), "");
  }
  EXPECT_EQ(ErrorOf({"status"}), "");
}

}  // namespace
}  // namespace ems::terminal
