// What must hold: each field is read or refused by name; what asks for nothing special is fine.
#include "pdc/api/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::pdc::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CompletionRequest Good(CompletionKind kind, const std::string& body) {
  auto parsed = ParseCompletionRequest(kind, body);
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << body << ": " << (error != nullptr ? error->message : "");
  return error == nullptr ? std::get<CompletionRequest>(parsed) : CompletionRequest{};
}

ApiError Bad(CompletionKind kind, const std::string& body) {
  auto parsed = ParseCompletionRequest(kind, body);
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_NE(error, nullptr) << body;
  return error == nullptr ? ApiError{} : *error;
}

// With `fields` after a valid beginning.
std::string Text(const std::string& fields) {
  return R"({"model": "m", "prompt": "p")" + (fields.empty() ? "" : ", " + fields) + "}";
}
std::string Chat(const std::string& fields) {
  return R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])" +
         (fields.empty() ? "" : ", " + fields) + "}";
}

TEST(CompletionRequestTest, DefaultsAreOpenAIs) {
  const CompletionRequest request = Good(CompletionKind::kText, Text(""));
  EXPECT_EQ(request.generate.model, "m");
  EXPECT_EQ(request.generate.text, "p");
  EXPECT_THAT(request.generate.tokens, IsEmpty());
  EXPECT_FALSE(request.tokens_max.has_value());
  EXPECT_EQ(request.generate.sampling.temperature, 1);
  EXPECT_EQ(request.generate.sampling.top_p, 1);
  EXPECT_FALSE(request.generate.sampling.seed.has_value());
  EXPECT_FALSE(request.stream);
  EXPECT_THAT(request.generate.stop, IsEmpty());
}

TEST(CompletionRequestTest, ReadsEachField) {
  const CompletionRequest request =
      Good(CompletionKind::kText,
           Text(R"("max_tokens": 7, "temperature": 0, "top_p": 0.5, "seed": -1, "stop": ["a", "b"],
              "stream": true, "stream_options": {"include_usage": true}, "user": "u",
              "cache_salt": "s", "ignore_eos": true, "unknown": {"x": 1})"));
  EXPECT_EQ(request.tokens_max, 7u);
  EXPECT_EQ(request.generate.sampling.temperature, 0);
  EXPECT_EQ(request.generate.sampling.top_p, 0.5);
  EXPECT_EQ(request.generate.sampling.seed, ~uint64_t{0});
  EXPECT_THAT(request.generate.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(request.stream && request.include_usage && request.generate.ignore_eos);
  EXPECT_EQ(request.generate.user, "u");
  EXPECT_EQ(request.generate.cache_salt, "s");
  EXPECT_THAT(Good(CompletionKind::kText, Text(R"("stop": "x")")).generate.stop, ElementsAre("x"));
  EXPECT_EQ(Good(CompletionKind::kChat, Chat(R"("max_completion_tokens": 9)")).tokens_max, 9u);
  EXPECT_EQ(Good(CompletionKind::kChat, Chat(R"("max_tokens": 9)")).tokens_max, 9u);
}

TEST(CompletionRequestTest, PromptsAreTextOrTokensOneARequest) {
  auto prompt = [](const std::string& value) {
    return R"({"model": "m", "prompt": )" + value + "}";
  };
  EXPECT_THAT(Good(CompletionKind::kText, prompt("[1, 2]")).generate.tokens, ElementsAre(1u, 2u));
  EXPECT_THAT(Good(CompletionKind::kText, prompt("[[1, 2]]")).generate.tokens, ElementsAre(1u, 2u));
  EXPECT_EQ(Good(CompletionKind::kText, prompt(R"(["a"])")).generate.text, "a");
  EXPECT_EQ(Good(CompletionKind::kText, prompt(R"("\u0000\u00e4")")).generate.text,
            std::string("\0\xC3\xA4", 3));
  for (const std::string bad : {"null", "\"\"", "[]", "[[]]", "3", "{}", "[1, -1]", "[1.5]",
                                "[4294967296]", R"(["a", "b"])", "[[1], [2]]", "[1, \"a\"]"}) {
    EXPECT_EQ(Bad(CompletionKind::kText, prompt(bad)).param, "prompt") << bad;
  }
  EXPECT_EQ(Bad(CompletionKind::kText, R"({"model": "m"})").code, "missing_parameter");
}

TEST(CompletionRequestTest, MessagesBecomeAPrompt) {
  auto messages = [](const std::string& value) {
    return R"({"model": "m", "messages": )" + value + "}";
  };
  EXPECT_EQ(
      Good(CompletionKind::kChat, messages(R"([{"role": "developer", "content": "d", "name": "n"},
                              {"role": "user", "content": [{"type": "text", "text": "a"},
                                                           {"type": "text", "text": "b"}]},
                              {"role": "assistant", "content": null}])"))
          .generate.text,
      "\xFD"
      "developer\xFE"
      "d\xFF\xFDuser\xFE"
      "ab\xFF\xFD"
      "assistant\xFE\xFF\xFD"
      "assistant\xFE");
  const std::vector<std::pair<std::string, std::string>> table = {
      {"[]", "messages"},
      {"\"hi\"", "messages"},
      {"[3]", "messages[0]"},
      {R"([{"role": "tool", "content": "x"}])", "messages[0].role"},
      {R"([{"content": "x"}])", "messages[0].role"},
      {R"([{"role": "user", "content": "x"}, {"role": "user"}])", "messages[1].content"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content"},
      {R"([{"role": "user", "content": ["x"]}])", "messages[0].content"},
      {R"([{"role": "user", "content": 3}])", "messages[0].content"},
      {R"([{"role": "assistant", "content": "", "tool_calls": [1]}])", "messages[0].tool_calls"},
  };
  for (const auto& [value, param] : table) {
    EXPECT_EQ(Bad(CompletionKind::kChat, messages(value)).param, param) << value;
  }
  EXPECT_EQ(Bad(CompletionKind::kChat, R"({"model": "m"})").param, "messages");
}

TEST(CompletionRequestTest, WrongValuesAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"max_tokens", "0"},
      {"max_tokens", "-1"},
      {"max_tokens", "1.5"},
      {"max_tokens", "\"1\""},
      {"temperature", "2.1"},
      {"temperature", "-0.1"},
      {"temperature", "\"\""},
      {"top_p", "0"},
      {"top_p", "1.1"},
      {"seed", "1.5"},
      {"seed", "\"x\""},
      {"stop", "[\"\"]"},
      {"stop", "\"\""},
      {"stop", "3"},
      {"stop", R"(["1","2","3","4","5"])"},
      {"stream", "1"},
      {"stream_options", "{}"},
      {"stream_options", "3"},
      {"user", "3"},
      {"cache_salt", "[]"},
      {"ignore_eos", "0"},
  };
  for (const auto& [name, value] : table) {
    const ApiError error = Bad(CompletionKind::kText, Text("\"" + name + "\": " + value));
    EXPECT_EQ(error.param, name) << value;
    EXPECT_EQ(error.status, 400);
    EXPECT_THAT(error.message, HasSubstr(name));
  }
  EXPECT_EQ(Bad(CompletionKind::kText, Text("\"stop\": \"" + std::string(257, 'x') + "\"")).param,
            "stop");
  EXPECT_EQ(Bad(CompletionKind::kText, Text("\"user\": \"" + std::string(513, 'x') + "\"")).param,
            "user");
  EXPECT_EQ(
      Bad(CompletionKind::kChat, Chat(R"("max_tokens": 3, "max_completion_tokens": 4)")).param,
      "max_completion_tokens");
  EXPECT_EQ(Bad(CompletionKind::kText, R"({"prompt": "p"})").param, "model");
  EXPECT_EQ(Bad(CompletionKind::kText, R"({"model": 3, "prompt": "p"})").param, "model");
}

TEST(CompletionRequestTest, WhatIsNotSupportedIsRefusedUnlessItAsksForNothing) {
  struct Row {
    CompletionKind kind;
    const char* name;
    const char* fine;
    const char* refused;
  };
  const CompletionKind text = CompletionKind::kText, chat = CompletionKind::kChat;
  const std::vector<Row> table = {
      {text, "n", "1", "2"},
      {chat, "n", "null", "0"},
      {text, "best_of", "1", "3"},
      {text, "echo", "false", "true"},
      {text, "logprobs", "null", "0"},
      {text, "suffix", "\"\"", "\"x\""},
      {chat, "logprobs", "false", "true"},
      {chat, "top_logprobs", "0", "2"},
      {chat, "tools", "[]", "[{}]"},
      {chat, "tool_choice", "\"none\"", "\"auto\""},
      {chat, "response_format", R"({"type": "text"})", R"({"type": "json_object"})"},
      {chat, "modalities", R"(["text"])", R"(["audio"])"},
      {text, "frequency_penalty", "0.0", "0.5"},
      {text, "presence_penalty", "0", "-1"},
      {text, "repetition_penalty", "1.0", "1.1"},
      {text, "logit_bias", "{}", R"({"5": 1})"},
      {text, "top_k", "-1", "40"},
      {text, "min_p", "0", "0.1"},
  };
  for (const Row& row : table) {
    auto body = [&row](const char* value) {
      const std::string field = std::string("\"") + row.name + "\": " + value;
      return row.kind == CompletionKind::kText ? Text(field) : Chat(field);
    };
    Good(row.kind, body(row.fine));
    const ApiError error = Bad(row.kind, body(row.refused));
    EXPECT_EQ(error.param, row.name);
    EXPECT_EQ(error.code, "unsupported_parameter");
  }
}

TEST(CompletionRequestTest, WhatIsNoJsonIsRefusedWithThePlace) {
  const ApiError error = Bad(CompletionKind::kText, R"({"model": nope})");
  EXPECT_EQ(error.code, "invalid_json");
  EXPECT_THAT(error.message, HasSubstr("byte 12"));
  for (const std::string body :
       {"", "[]", "3", "null", "{", "{\"model\": \"\xFF\"}", "1e999", R"({"model": "\ud800"})"}) {
    EXPECT_EQ(Bad(CompletionKind::kText, body).status, 400) << body;
  }
  // Deep nesting takes no stack.
  EXPECT_EQ(Bad(CompletionKind::kText, std::string(1'000'000, '[')).status, 400);
  const std::string deep = Text("\"x\": " + std::string(200'000, '[') + std::string(200'000, ']'));
  EXPECT_EQ(Good(CompletionKind::kText, deep).generate.text, "p");
}

}  // namespace
}  // namespace ems::pdc::api
