// What must hold: every byte survives the way to tokens and back, no text makes a special token,
// and a stream never emits half a character.
#include "pdc/engine/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ems_model/format/tensor_table.h"

namespace ems::pdc {
namespace {

std::string Streamed(std::string_view text) {
  TextStream stream;
  std::string out;
  for (const TokenId token : Tokenize(text)) {
    const std::string piece = stream.Push(token);
    EXPECT_TRUE(model::IsUtf8(piece));
    out += piece;
  }
  return out + stream.Finish();
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
  std::set<std::string_view> names;
  for (TokenId token = kByteTokens; token < kTokens; ++token) names.insert(SpecialName(token));
  EXPECT_EQ(names.size(), kTokens - kByteTokens);
  EXPECT_EQ(SpecialName('a'), "");
  EXPECT_EQ(SpecialName(kTokens), "");
  EXPECT_EQ(Detokenize(std::vector<TokenId>{kBeginToken, 'h', 'i', kEndToken}), "hi");
}

TEST(TokenizerTest, StreamKeepsCharactersWhole) {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z";
  EXPECT_EQ(Streamed(text), text);
  TextStream stream;
  EXPECT_EQ(stream.Push(0xE2), "");
  EXPECT_EQ(stream.Push(kUserToken), "");
  EXPECT_EQ(stream.Push(0x82), "");
  EXPECT_EQ(stream.Push(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TokenizerTest, StreamReplacesWhatIsNoUtf8) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(Streamed("\xFFok"), bad + "ok");
  EXPECT_EQ(Streamed("\xE2\x82z"), bad + "z");
  EXPECT_EQ(Streamed("x\xE2\x82"), "x" + bad);
  EXPECT_EQ(Streamed("\xC0\x80"), bad + bad);             // overlong
  EXPECT_EQ(Streamed("\xED\xA0\x80"), bad + bad + bad);   // a surrogate
  EXPECT_EQ(Streamed("\xE2\xC3\xA4"), bad + "\xC3\xA4");  // begins anew
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n) text.push_back(static_cast<char>(random()));
    EXPECT_TRUE(model::IsUtf8(Streamed(text)));
  }
}

}  // namespace
}  // namespace ems::pdc
