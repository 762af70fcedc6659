// What must hold: a program gets its words as they are, and what became of it is told apart.
#include "tools/emsctl/rollout/run_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::emsctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Status Shell(const std::string& script, const std::string& argument = "",
             Duration patience = seconds(60)) {
  return RunWords({"sh", "-c", script, "sh", argument}, patience);
}

TEST(RunWordsTest, WordsComeAsTheyAre) {
  EXPECT_EQ(Shell("test \"$1\" = '$(exit 3); x'", "$(exit 3); x"), OkStatus());
}

TEST(RunWordsTest, AnotherEndThanZeroIsTold) {
  const Status failed = Shell("exit 3");
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_THAT(Message(failed), HasSubstr("ended with exit code 3"));
  EXPECT_THAT(Message(Shell("kill -9 $$")), HasSubstr("ended by signal 9"));
  const Status none = RunWords({"/no/such/program", "a b"}, seconds(60));
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  EXPECT_THAT(Message(none), HasSubstr("cannot start /no/such/program 'a b': No such file"));
}

TEST(RunWordsTest, OneThatDoesNotEndIsEnded) {
  const Status late = Shell("trap '' TERM; while :; do sleep 1; done", "", milliseconds(50));
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
}

TEST(RunWordsTest, WhatItPrintsIsNoResultOfOurs) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Shell("echo printed"), OkStatus());
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "printed\n");
}

}  // namespace
}  // namespace ems::emsctl
