// What must hold: a misspelt word finds the one that was meant, another word finds none.
#include "common/nearest_word.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems {
namespace {

const std::vector<std::string> kKnown = {"status", "nodes", "namespace"};

TEST(NearestWordTest, FindsAMisspelling) {
  EXPECT_EQ(NearestWord("statsu", kKnown), "status");
  EXPECT_EQ(NearestWord("node", kKnown), "nodes");
  EXPECT_EQ(NearestWord("namspase", kKnown), "namespace");
}

TEST(NearestWordTest, WhatIsFarFromAllIsNone) {
  EXPECT_EQ(NearestWord("zzzzzzzz", kKnown), "");
  EXPECT_EQ(NearestWord("status", {}), "");
  EXPECT_EQ(NearestWord(std::string(129, 's'), kKnown), "");
}

}  // namespace
}  // namespace ems
