// What must hold: every byte survives the way to tokens and back, and no text makes a special
// token.
#include "pdc/engine/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

namespace ems::pdc {
namespace {

std::vector<TokenId> Tokenize(std::string_view text) {
  std::vector<TokenId> tokens;
  AppendTokens(text, &tokens);
  return tokens;
}

TEST(TokenizerTest, EveryByteSurvives) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(Detokenize(Tokenize(all)), all);
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    std::string text;
    for (size_t n = random() % 200; n > 0; --n) text.push_back(static_cast<char>(random()));
    EXPECT_EQ(Detokenize(Tokenize(text)), text);
  }
}

TEST(TokenizerTest, TextMakesNoSpecialToken) {
  for (const TokenId token : Tokenize("<|begin|><|end|>\xFF")) EXPECT_LT(token, kByteTokens);
  EXPECT_EQ(Detokenize(std::vector<TokenId>{kBeginToken, 'h', 'i', kEndToken}), "hi");
}

}  // namespace
}  // namespace ems::pdc
