// What must hold: a seed repeats a workload; prompts have the lengths and the shared beginnings
// that were asked for, to the byte, and nothing more in common.
#include "bench/serve/serve_workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace ems::bench {
namespace {

uint64_t CommonBytes(const std::string& a, const std::string& b) {
  return static_cast<uint64_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())),
                    b.begin())
          .first -
      a.begin());
}

TEST(ServeWorkloadTest, TextIsAsciiOfTheLengthWanted) {
  for (const uint64_t tokens : {0U, 1U, 2U, 1000U}) {
    const std::string text = MakeText(tokens, 5);
    EXPECT_EQ(text.size(), tokens);
    EXPECT_TRUE(
        std::ranges::all_of(text, [](char c) { return c == ' ' || (c >= 'a' && c <= 'z'); }));
  }
  EXPECT_EQ(MakeText(500, 5), MakeText(500, 5));
  EXPECT_LT(CommonBytes(MakeText(500, 5), MakeText(500, 6)), 16U);
}

TEST(ServeWorkloadTest, PromptsShareWhatIsSaidAndNoBlockMore) {
  for (const double reuse : {0.5, 0.9, 0.33}) {
    SharedPrefixSettings settings;
    settings.reuse = reuse;
    settings.prompts = 10;
    settings.groups = 3;
    const auto groups = MakeSharedPrefix(settings);
    ASSERT_TRUE(groups.ok()) << ToString(groups.status());
    ASSERT_EQ(groups->size(), 3U);
    const uint64_t shared = reuse == 0.5 ? 640 : reuse == 0.9 ? 1152 : 384;
    size_t prompts = 0;
    std::set<std::string> next_blocks;
    for (const PrefixGroup& group : *groups) {
      EXPECT_EQ(group.shared_tokens, shared);
      EXPECT_EQ(group.prime.size(), 1280U);
      next_blocks.insert(group.prime.substr(0, shared + 128));
      for (const std::string& prompt : group.prompts) {
        EXPECT_EQ(prompt.size(), 1280U);
        EXPECT_EQ(prompt.substr(0, shared), group.prime.substr(0, shared));
        next_blocks.insert(prompt.substr(0, shared + 128));
      }
      prompts += group.prompts.size();
    }
    EXPECT_EQ(prompts, 10U);
    EXPECT_EQ(next_blocks.size(), 13U) << "every prompt's next block is its own";
    EXPECT_LT(CommonBytes((*groups)[0].prime, (*groups)[1].prime), 16U);
    const auto again = MakeSharedPrefix(settings);
    EXPECT_EQ((*again)[2].prompts, (*groups)[2].prompts);
    settings.seed = 2;
    EXPECT_NE((*MakeSharedPrefix(settings))[2].prompts, (*groups)[2].prompts);
  }
}

TEST(ServeWorkloadTest, SharesThatMakeNoBlocksAreRefused) {
  const auto refused = [](auto change) {
    SharedPrefixSettings settings;
    change(&settings);
    return MakeSharedPrefix(settings).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](auto*) {}));
  EXPECT_TRUE(refused([](auto* s) { s->reuse = 0; }));
  EXPECT_TRUE(refused([](auto* s) { s->reuse = 1; }));
  EXPECT_TRUE(refused([](auto* s) { s->reuse = 0.05; })) << "less than a block";
  EXPECT_TRUE(refused([](auto* s) { s->prompt_tokens = 1200, s->reuse = 0.99; }));
  EXPECT_TRUE(refused([](auto* s) { s->groups = 0; }));
  EXPECT_TRUE(refused([](auto* s) { s->prompts = 3; })) << "fewer than groups";
  EXPECT_TRUE(refused([](auto* s) { s->block_tokens = 0; }));
}

TEST(ServeWorkloadTest, ConversationsGrowByAnswersAndNewWords) {
  ChatSettings settings;
  settings.conversations = 3;
  ChatWorkload chat(settings);
  const std::string first = chat.prompt(1);
  EXPECT_EQ(CommonBytes(first, chat.prompt(2)), settings.system_tokens + 7) << "and \"\\nuser: \"";
  EXPECT_EQ(chat.repeated_tokens(0), 0U);
  EXPECT_EQ(chat.repeated_tokens(1), settings.system_tokens);
  chat.Answer(1, "so it is");
  const std::string second = chat.prompt(1);
  EXPECT_TRUE(second.starts_with(first + "so it is\nuser: "));
  EXPECT_EQ(chat.repeated_tokens(1), first.size());
  EXPECT_EQ(second.size(), 2 * first.size() - settings.system_tokens + 8);
  ChatWorkload again(settings);
  EXPECT_EQ(again.prompt(1), first);
  again.Answer(1, "so it is");
  EXPECT_EQ(again.prompt(1), second);
}

TEST(ServeWorkloadTest, ConversationsMayBeginWithWordsOfTheirOwn) {
  ChatSettings settings;
  settings.shared_system = false;
  const ChatWorkload chat(settings);
  EXPECT_LT(CommonBytes(chat.prompt(0), chat.prompt(1)), 16U);
  EXPECT_EQ(chat.repeated_tokens(1), 0U);
}

}  // namespace
}  // namespace ems::bench
