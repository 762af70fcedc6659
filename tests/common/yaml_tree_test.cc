// What must hold: the tree has every value where the text has it, with its line; what a
// configuration does not need is refused, and nothing makes the parser work or recurse without end.
#include "common/yaml_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = YamlItem::Kind;

std::string ErrorOf(std::string_view text) {
  const Result<YamlItem> tree = ParseYaml(text, "f.yaml");
  EXPECT_EQ(tree.status().code(), StatusCode::kInvalidArgument) << text.substr(0, 100);
  return std::string(Message(tree.status()));
}

TEST(YamlTreeTest, ValuesStandWhereTheTextHasThem) {
  const Result<YamlItem> tree =
      ParseYaml("name: a\n\ndram:\n  bytes: '64 MiB'\n  off:\nlist: [1, 2]\n", "f.yaml");
  ASSERT_TRUE(tree.ok()) << ToString(tree.status());
  ASSERT_EQ(tree->kind, Kind::kMap);
  ASSERT_EQ(tree->entries.size(), 3u);
  EXPECT_EQ(tree->entries[0].first, "name");
  EXPECT_EQ(tree->entries[0].second.scalar, "a");
  EXPECT_EQ(tree->entries[0].second.line, 1);
  const YamlItem& dram = tree->entries[1].second;
  ASSERT_EQ(dram.kind, Kind::kMap);
  EXPECT_EQ(dram.entries[0].first, "bytes");
  EXPECT_EQ(dram.entries[0].second.scalar, "64 MiB");
  EXPECT_EQ(dram.entries[0].second.line, 4);
  EXPECT_EQ(dram.entries[1].second.kind, Kind::kNull);
  EXPECT_EQ(tree->entries[2].second.kind, Kind::kList);
}

TEST(YamlTreeTest, AnEmptyTextIsNothing) {
  EXPECT_EQ(ParseYaml("", "f.yaml")->kind, Kind::kNull);
  EXPECT_EQ(ParseYaml("# a comment\n", "f.yaml")->kind, Kind::kNull);
}

TEST(YamlTreeTest, WhatAConfigurationDoesNotNeedIsRefusedWithItsLine) {
  EXPECT_THAT(ErrorOf("a: 1\nb: &x 2\n"), StartsWith("f.yaml:2: anchors (&)"));
  EXPECT_THAT(ErrorOf("a: *x\n"), HasSubstr("f.yaml:1"));
  EXPECT_THAT(ErrorOf("a: !!binary aGk=\n"), HasSubstr("tags (!)"));
  EXPECT_THAT(ErrorOf("a: 1\n---\nb: 2\n"), HasSubstr("second document"));
  EXPECT_THAT(ErrorOf("a: 1\nb: 2\na: 3\n"), StartsWith("f.yaml:3: key \"a\" is given twice"));
  EXPECT_THAT(ErrorOf("? [a]\n: b\n"), HasSubstr("a key must be a plain word"));
  EXPECT_THAT(ErrorOf("a: b: c\n"), StartsWith("f.yaml:1: not valid YAML"));
}

TEST(YamlTreeTest, TextsWithoutMeasureEndSoon) {
  EXPECT_THAT(ErrorOf(std::string(kTextBytesMax + 1, ' ')), HasSubstr("longer than"));
  EXPECT_THAT(ErrorOf(std::string(100'000, '[')), HasSubstr("f.yaml:"));
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += "{a: ";
  EXPECT_THAT(ErrorOf(deep + "1" + std::string(40, '}')), HasSubstr("deeper than 32 levels"));
  std::string wide;
  for (int i = 0; i < 1001; ++i) wide += fmt::format("k{}: 1\n", i);
  EXPECT_THAT(ErrorOf(wide), HasSubstr("more than 1000 keys"));
}

}  // namespace
}  // namespace ems::config
