// What must hold: each turn asks with all text up to it, prompts that begin alike share whole
// blocks, and what is not such a data set is named.
#include "bench/trace/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr size_t kBlockBytes = kTraceBlockTokens * kTextBytesPerToken;

TEST(ConversationTest, EachTurnAsksWithAllTextUpToIt) {
  const Json json = {{"conversations",
                      {{{"from", "system"}, {"value", std::string(kBlockBytes, 's')}},
                       {{"from", "human"}, {"value", std::string(100, 'a')}},
                       {{"from", "gpt"}, {"value", std::string(41, 'b')}},
                       {{"from", "human"}, {"value", std::string(kBlockBytes - 141, 'c')}}}}};
  const auto talk = ParseConversation(json.dump());
  ASSERT_TRUE(talk.ok()) << ToString(talk.status());
  ASSERT_EQ(talk->turns.size(), 2U);
  const TraceRequest first = talk->Request(0), second = talk->Request(1);
  EXPECT_EQ(first.input_tokens, 512U + 25);
  EXPECT_EQ(first.output_tokens, 11U) << "41 bytes";
  ASSERT_EQ(first.blocks.size(), 2U);
  EXPECT_EQ(second.input_tokens, 1024U);
  EXPECT_EQ(second.output_tokens, 0U);
  ASSERT_EQ(second.blocks.size(), 2U);
  EXPECT_EQ(first.blocks[0], second.blocks[0]);
  EXPECT_NE(first.blocks[1], second.blocks[1]) << "the first one ends within its block";
}

TEST(ConversationTest, MessagesAreReadLikeShareGpt) {
  const auto one = ParseConversation(
      R"({"messages": [{"role": "user", "content": "hello"},
                       {"role": "assistant", "content": "hi"}]})");
  const auto other = ParseConversation(
      R"({"conversations": [{"from": "human", "value": "hello"},
                            {"from": "gpt", "value": "hi"}]})");
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->Request(0).blocks, other->Request(0).blocks);
  EXPECT_EQ(one->Request(0).input_tokens, 2U);
  EXPECT_EQ(one->Request(0).output_tokens, 1U);
}

TEST(ConversationTest, NobodyWhoAsksIsNoRequest) {
  const auto talk = ParseConversation(R"({"conversations": [{"from": "gpt", "value": "hi"},
                                                            {"from": "human", "value": ""}]})");
  ASSERT_TRUE(talk.ok());
  EXPECT_EQ(talk->turns.size(), 1U) << "with the text before it";
  EXPECT_TRUE(ParseConversation(R"({"conversations": []})")->turns.empty());
}

TEST(ConversationTest, PromptsHaveBlocksByTheirText) {
  const std::string shared(kBlockBytes, 'p');
  const auto prompt = [&](const std::string& rest) {
    return ParsePrompt(Json{{"prompt", shared + rest}, {"output_tokens", 9}}.dump())->Request(0);
  };
  const TraceRequest one = prompt("x"), other = prompt("y");
  EXPECT_EQ(one.output_tokens, 9U);
  EXPECT_EQ(one.input_tokens, 513U);
  EXPECT_EQ(one.blocks[0], other.blocks[0]);
  EXPECT_NE(one.blocks[1], other.blocks[1]);
  EXPECT_EQ(ParsePrompt(R"({"prompt": "x"})")->Request(0).output_tokens, 0U);
}

TEST(ConversationTest, NamesWhatIsWrong) {
  const auto check = [](const Status& status, const char* says) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << says;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(says));
  };
  check(ParsePrompt("{").status(), "not a JSON object");
  check(ParsePrompt("{\"prompt\": \"\xff\"}").status(), "not a JSON object");
  check(ParsePrompt("{}").status(), "\"prompt\"");
  check(ParsePrompt(R"({"prompt": ""})").status(), "empty");
  check(ParsePrompt(R"({"prompt": "x", "output_tokens": -1})").status(), "\"output_tokens\"");
  check(ParseConversation("[]").status(), "not a JSON object");
  check(ParseConversation("{}").status(), "neither");
  check(ParseConversation(R"({"conversations": [{"value": "x"}]})").status(), "\"from\"");
  check(ParseConversation(R"({"conversations": ["x"]})").status(), "\"from\"");
  check(ParseConversation(R"({"messages": [{"role": "user", "content": []}]})").status(),
        "\"content\"");
}

}  // namespace
}  // namespace ems::bench
