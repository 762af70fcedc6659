// What must hold: answers have the fields of OpenAI's, whole and in parts.
#include "pdc/api/completion_reply.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ems::pdc::api {
namespace {

using nlohmann::json;

const TokenUsage kUsage = {.prompt = {.prompt_tokens = 10, .cached_tokens = 8},
                           .completion_tokens = 3};

CompletionReply Make(CompletionKind kind, bool include_usage = false) {
  return CompletionReply(kind, "id-1", "m", 1234, include_usage);
}

// The events of a stream, without [DONE].
std::vector<json> Events(const std::string& text) {
  std::vector<json> events;
  size_t at = 0;
  while (at < text.size()) {
    EXPECT_EQ(text.compare(at, 6, "data: "), 0);
    const size_t end = text.find("\n\n", at);
    events.push_back(json::parse(text.substr(at + 6, end - at - 6)));
    at = end + 2;
  }
  return events;
}

TEST(CompletionReplyTest, AWholeCompletion) {
  const json answer =
      json::parse(Make(CompletionKind::kText).Whole("a\n\"b\"", FinishReason::kStop, kUsage));
  EXPECT_EQ(answer, json::parse(R"({"id": "id-1", "object": "text_completion", "created": 1234,
      "model": "m", "choices": [{"index": 0, "text": "a\n\"b\"", "logprobs": null,
      "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 3,
      "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 8}}})"));
}

TEST(CompletionReplyTest, AWholeChatAnswer) {
  const json answer =
      json::parse(Make(CompletionKind::kChat).Whole("hi", FinishReason::kLength, kUsage));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"],
            json::parse(R"({"role": "assistant", "content": "hi", "refusal": null})"));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST(CompletionReplyTest, APlainStream) {
  const CompletionReply reply = Make(CompletionKind::kText);
  EXPECT_EQ(reply.Opening(), "");
  const auto events = Events(reply.Part("a") + reply.Closing("b", FinishReason::kLength, kUsage));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["object"], "text_completion");
  EXPECT_EQ(events[0]["choices"][0]["text"], "a");
  EXPECT_TRUE(events[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(events[0].contains("usage"));
  EXPECT_EQ(events[1]["choices"][0]["text"], "b");
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], "length");
}

TEST(CompletionReplyTest, AChatStreamWithUsage) {
  const CompletionReply reply = Make(CompletionKind::kChat, true);
  const auto events =
      Events(reply.Opening() + reply.Part("a") + reply.Closing("", FinishReason::kStop, kUsage));
  ASSERT_EQ(events.size(), 4u);
  for (const json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], "id-1");
  }
  EXPECT_EQ(events[0]["choices"][0]["delta"],
            json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_TRUE(events[0]["usage"].is_null());
  EXPECT_EQ(events[1]["choices"][0]["delta"], json::parse(R"({"content": "a"})"));
  EXPECT_EQ(events[2]["choices"][0]["delta"], json::object());
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[3]["choices"], json::array());
  EXPECT_EQ(events[3]["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
}

TEST(CompletionReplyTest, NamesOfReasons) {
  EXPECT_EQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_EQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_EQ(StreamEvent("{}"), "data: {}\n\n");
}

}  // namespace
}  // namespace ems::pdc::api
