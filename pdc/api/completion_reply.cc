#include "pdc/api/completion_reply.h"

#include <nlohmann/json.hpp>

namespace ems::pdc::api {
namespace {

using Json = nlohmann::ordered_json;

// Models' names come from our own list and texts from TextFilter; whatever slips through is
// replaced.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json UsageJson(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.prompt.cached_tokens}}}};
}

}  // namespace

std::string StreamEvent(std::string_view json) { return "data: " + std::string(json) + "\n\n"; }

std::string_view FinishReasonName(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

Json CompletionReply::Head(bool part) const {
  const char* const chat = part ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_},
          {"object", kind_ == CompletionKind::kChat ? chat : "text_completion"},
          {"created", created_s_},
          {"model", model_}};
}

std::string CompletionReply::Whole(std::string_view text, FinishReason reason,
                                   const TokenUsage& usage) const {
  Json choice = {{"index", 0}};
  if (kind_ == CompletionKind::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = FinishReasonName(reason);
  Json answer = Head(false);
  answer["choices"] = Json::array({choice});
  answer["usage"] = UsageJson(usage);
  return Dump(answer);
}

std::string CompletionReply::Chunk(std::string_view delta_field, std::string_view text,
                                   const FinishReason* reason) const {
  Json choice = {{"index", 0}};
  if (kind_ == CompletionKind::kChat) {
    Json delta = Json::object();
    if (delta_field == "role") delta = {{"role", "assistant"}, {"content", ""}};
    if (delta_field == "content" && !text.empty()) delta["content"] = text;
    choice["delta"] = delta;
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = reason == nullptr ? Json(nullptr) : Json(FinishReasonName(*reason));
  Json chunk = Head(true);
  chunk["choices"] = Json::array({choice});
  if (include_usage_) chunk["usage"] = nullptr;
  return StreamEvent(Dump(chunk));
}

std::string CompletionReply::Opening() const {
  return kind_ == CompletionKind::kChat ? Chunk("role", "", nullptr) : std::string();
}

std::string CompletionReply::Part(std::string_view text) const {
  return Chunk("content", text, nullptr);
}

std::string CompletionReply::Closing(std::string_view text, FinishReason reason,
                                     const TokenUsage& usage) const {
  std::string events = Chunk("content", text, &reason);
  if (!include_usage_) return events;
  Json last = Head(true);
  last["choices"] = Json::array();
  last["usage"] = UsageJson(usage);
  return events + StreamEvent(Dump(last));
}

}  // namespace ems::pdc::api
