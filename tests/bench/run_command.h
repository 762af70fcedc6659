#pragma once
// Runs a command of ems-bench in the test's process, as its main would.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace ems::bench {

struct CommandOutcome {
  bool parsed = false;  // only then it ran
  int code = -1;
  std::string text, errors;
};

// Parses and, when that went well, runs. `add`: AddEngineCommand, AddMemoryCommand, …
inline CommandOutcome RunBench(void (*add)(CLI::App*, std::function<int()>*),
                               std::vector<std::string> arguments) {
  CLI::App app;
  app.require_subcommand(1);
  std::function<int()> run;
  add(&app, &run);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  CommandOutcome outcome;
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError&) {
    return outcome;
  }
  outcome.parsed = true;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.code = run();
  outcome.text = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

}  // namespace ems::bench
