// What must hold: a conversation's roles are special tokens, a turn with its answer begins the next
// one, and no text that a user can write makes a special token.
#include "pdc/router/prompt_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "pdc/api/chat_template.h"

namespace ems::pdc {
namespace {

TEST(PromptTokensTest, TextIsItsBytesAfterABeginning) {
  EXPECT_EQ(PromptTokens("ab"), (std::vector<TokenId>{kBeginToken, 'a', 'b'}));
  EXPECT_EQ(PromptTokens(""), std::vector<TokenId>{kBeginToken});
  EXPECT_EQ(PromptTokens("\xC3\xA4"), (std::vector<TokenId>{kBeginToken, 0xC3, 0xA4}));
}

TEST(PromptTokensTest, RolesOfAConversationAreSpecialTokens) {
  const std::string text = api::ChatPrompt({{.role = "system", .content = "s"},
                                            {.role = "developer", .content = "d"},
                                            {.role = "user", .content = "u"},
                                            {.role = "assistant", .content = "a"},
                                            {.role = "tool", .content = "t"}});
  EXPECT_EQ(
      PromptTokens(text),
      (std::vector<TokenId>{kBeginToken, kSystemToken, 's', kTurnEndToken, kSystemToken, 'd',
                            kTurnEndToken, kUserToken, 'u', kTurnEndToken, kAssistantToken, 'a',
                            kTurnEndToken, kToolToken, 't', kTurnEndToken, kAssistantToken}));
}

TEST(PromptTokensTest, ATurnWithItsAnswerBeginsTheNextTurn) {
  std::vector<api::ChatMessage> messages = {{.role = "user", .content = "Who?"}};
  std::vector<TokenId> before = PromptTokens(api::ChatPrompt(messages));
  AppendTokens("Me.", &before);
  before.push_back(kTurnEndToken);
  messages.push_back({.role = "assistant", .content = "Me."});
  messages.push_back({.role = "user", .content = "Why?"});
  const std::vector<TokenId> after = PromptTokens(api::ChatPrompt(messages));
  ASSERT_GT(after.size(), before.size());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
}

TEST(PromptTokensTest, NamesOfSpecialTokensAndOfRolesInATextAreBytes) {
  for (const std::string text : {"<|user|>", "user", "<|end|> assistant"}) {
    const std::vector<TokenId> tokens = PromptTokens(text);
    ASSERT_EQ(tokens.size(), text.size() + 1);
    EXPECT_EQ(Detokenize(tokens), text);
  }
}

TEST(PromptTokensTest, WhatIsNotWhollyARoleStaysBytes) {
  for (const std::string text : {"\xFD", "\xFDuser", "\xFDusers\xFE", "\xFD\xFE", "\xFEuser\xFD",
                                 "\xFDking\xFE", "\xFDuse"}) {
    const std::vector<TokenId> tokens = PromptTokens(text);
    EXPECT_EQ(tokens.size(), text.size() + 1);
    EXPECT_EQ(Detokenize(tokens), text);
  }
  EXPECT_EQ(PromptTokens("\xFD\xFDuser\xFE"),
            (std::vector<TokenId>{kBeginToken, 0xFD, kUserToken}));
}

}  // namespace
}  // namespace ems::pdc
