// What must hold: words are those that the operator meant, and whatever a server calls itself stays
// within one of them, or nothing is run.
#include "tools/emsctl/rollout/command_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ems::emsctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> WordsOf(std::string_view text, std::string_view name = "a",
                                 std::string_view host = "h") {
  const Result<CommandWords> command = CommandWords::Parse(text);
  if (!command.ok()) return {std::string(Message(command.status()))};
  const Result<std::vector<std::string>> words = command->For(name, host);
  if (!words.ok()) return {std::string(Message(words.status()))};
  return *words;
}

TEST(CommandWordsTest, WordsAreSplitAsAShellSplitsThem) {
  EXPECT_THAT(WordsOf("ssh  {host}\tsystemctl restart 'ems server@{name}'"),
              ElementsAre("ssh", "h", "systemctl", "restart", "ems server@a"));
  EXPECT_THAT(WordsOf(R"(x {name} "a b\"c\\d\e" 'f\g' h\ i "" ''j"k"l)"),
              ElementsAre("x", "a", R"(a b"c\d\e)", R"(f\g)", "h i", "", "jkl"));
  EXPECT_THAT(WordsOf("x {name} $HOME * ; | > `id` $(id)"),
              ElementsAre("x", "a", "$HOME", "*", ";", "|", ">", "`id`", "$(id)"));
}

TEST(CommandWordsTest, BothAreReplacedWhereverTheyStand) {
  EXPECT_THAT(WordsOf("{name}/{host} {host}{host} --on={name}", "s-1", "10.0.0.1"),
              ElementsAre("s-1/10.0.0.1", "10.0.0.110.0.0.1", "--on=s-1"));
}

TEST(CommandWordsTest, WhatIsNoCommandForEachServerIsRefused) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "no program"},
      {"   ", "no program"},
      {"'' {name}", "no program"},
      {"x 'a {name}", "a quote"},
      {"x {name}\\", "a quote"},
      {"systemctl restart mp-server", "the same for each server"},
      {"x {name} {port}", "only {name} and {host}"},
      {"x {name} {", "only {name} and {host}"}};
  for (const auto& [text, why] : wrong)
    EXPECT_THAT(WordsOf(text), ElementsAre(HasSubstr(why))) << text;
}

TEST(CommandWordsTest, ANameThatAProgramOrAShellCouldReadAsMoreIsRefused) {
  for (const std::string_view name : {"a b", "a;b", "$(id)", "`id`", "a'b", "a\"b", "a\nb", "",
                                      "-o", "--now", "a/b", "{host}", "a&b", "\xc3\xa4", "a=b"}) {
    EXPECT_THAT(WordsOf("x {name}", name), ElementsAre(HasSubstr("the name \""))) << name;
    EXPECT_THAT(WordsOf("x {host}", "a", name), ElementsAre(HasSubstr("the host \""))) << name;
  }
  EXPECT_THAT(WordsOf("x {name} {host}", "Server_1.rack-2", "fe80::1"),
              ElementsAre("x", "Server_1.rack-2", "fe80::1"));
}

TEST(CommandWordsTest, AHostIsTheAddressWithoutItsPort) {
  EXPECT_EQ(HostOf("10.0.0.1:7500"), "10.0.0.1");
  EXPECT_EQ(HostOf("[fe80::1]:7500"), "fe80::1");
  EXPECT_EQ(HostOf("host"), "host");
}

TEST(CommandWordsTest, ShownWordsAreThoseThatAShellWouldTakeForThem) {
  EXPECT_EQ(Quoted({"ssh", "a@b", "a b", "it's", "", "$x", "k=v/w"}),
            R"(ssh a@b 'a b' 'it'\''s' '' '$x' k=v/w)");
}

}  // namespace
}  // namespace ems::emsctl
