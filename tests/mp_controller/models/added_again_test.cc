// What must hold: another choice of how a version is first read is taken while nobody can have read
// it, by who asks for the same in all else; a default takes no protection away. What AddModel makes
// of it: model_state_test.cc.
#include "mp_controller/models/added_again.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::controller {
namespace {

using model::FirstRead;
using ::testing::HasSubstr;

model::Manifest Version(FirstRead first_read) {
  model::Manifest manifest;
  manifest.model = "base";
  manifest.version = "v1";
  manifest.name_space = "models";
  manifest.source.url = "http://h/p/";
  manifest.source.first_read = first_read;
  manifest.files = {{"w", 100, "t"}};
  manifest.blocks = {{0, 0, 100, {}}};
  return manifest;
}

std::string Refusal(const model::Manifest& there, bool untouched, const model::Manifest& asked) {
  const auto taken = TakesFirstRead(there, untouched, asked, true);
  EXPECT_EQ(taken.status().code(), StatusCode::kAlreadyExists);
  return std::string(Message(taken.status()));
}

TEST(AddedAgainTest, AHigherChoiceIsTakenAndALowerOneIfItIsAskedForByName) {
  const auto once = Version(FirstRead::kOnce), twice = Version(FirstRead::kTwice);
  EXPECT_FALSE(TakesFirstRead(once, true, once, true).value());
  EXPECT_TRUE(TakesFirstRead(once, true, twice, false).value());
  EXPECT_FALSE(TakesFirstRead(twice, true, once, false).value());
  EXPECT_TRUE(TakesFirstRead(twice, true, once, true).value());
}

TEST(AddedAgainTest, WhatMayHaveBeenReadStaysAndIsNotTakenForVerified) {
  const auto once = Version(FirstRead::kOnce), twice = Version(FirstRead::kTwice);
  EXPECT_FALSE(TakesFirstRead(twice, false, once, true).value());
  EXPECT_THAT(Refusal(once, false, twice), HasSubstr("may have been read"));
  auto other = twice;
  other.source.url = "http://other/p/";
  EXPECT_THAT(Refusal(once, true, other), HasSubstr("another URL"));
}

TEST(AddedAgainTest, OtherFilesSumsOrBlocksAreAnotherVersion) {
  const auto there = Version(FirstRead::kOnce);
  auto asked = there;
  asked.files[0].tag = "u";
  EXPECT_THAT(Refusal(there, true, asked), HasSubstr("other files"));
  asked = there;
  asked.files[0].sum = "md5:0123456789abcdef0123456789abcdef";
  EXPECT_THAT(Refusal(there, true, asked), HasSubstr("other sums"));
  asked = there;
  asked.blocks = {{0, 0, 50, {}}, {0, 50, 50, {}}};
  EXPECT_THAT(Refusal(there, true, asked), HasSubstr("other blocks"));
}

}  // namespace
}  // namespace ems::controller
