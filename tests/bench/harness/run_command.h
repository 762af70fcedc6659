#pragma once
// Runs a command of ems-bench in the test's process, as its main would.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/command_line.h"

namespace ems::bench {

struct CommandOutcome {
  bool parsed = false;  // only then it ran
  int code = -1;
  std::string text, errors;
};

// Parses and, when that went well, runs. `add`: AddEngineCommand, AddMemoryCommand, …
inline CommandOutcome RunBench(void (*add)(Command*), std::vector<std::string> arguments) {
  Command program({.name = "ems-bench"});
  add(&program);
  CommandOutcome outcome;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.parsed = !program.Parse(std::move(arguments)).has_value();
  if (outcome.parsed) outcome.code = program.Run();
  outcome.text = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

}  // namespace ems::bench
