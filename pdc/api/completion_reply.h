#pragma once
// Answers of /v1/completions and /v1/chat/completions in OpenAI's shape: whole, or as the parts of
// a stream of server-sent events.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "pdc/api/completion_request.h"
#include "pdc/api/generate.h"

namespace ems::pdc::api {

struct TokenUsage {
  PromptUsage prompt;
  uint64_t completion_tokens = 0;
};

inline constexpr std::string_view kStreamDone = "data: [DONE]\n\n";

// "data: JSON\n\n": one event.
std::string StreamEvent(std::string_view json);
// "stop" or "length".
std::string_view FinishReasonName(FinishReason reason);

// The fields that all parts of one answer share. Texts are valid UTF-8. Threading: immutable.
class CompletionReply final {
 public:
  CompletionReply(CompletionKind kind, std::string id, std::string model, int64_t created_s,
                  bool include_usage)
      : kind_(kind),
        id_(std::move(id)),
        model_(std::move(model)),
        created_s_(created_s),
        include_usage_(include_usage) {}

  const std::string& id() const { return id_; }
  // The whole answer: a JSON object.
  std::string Whole(std::string_view text, FinishReason reason, const TokenUsage& usage) const;

  // Events of a stream, each with its frame, in this order: Opening once (empty for plain
  // completions), Part any number of times, Closing with what is left of the text, kStreamDone.
  std::string Opening() const;
  std::string Part(std::string_view text) const;
  // With usage, when it was asked for: an event of its own without choices.
  std::string Closing(std::string_view text, FinishReason reason, const TokenUsage& usage) const;

 private:
  std::string Chunk(std::string_view delta_field, std::string_view text,
                    const FinishReason* reason) const;
  // What the whole answer, and each part of a stream, begins with.
  nlohmann::ordered_json Head(bool part) const;

  CompletionKind kind_;
  std::string id_;
  std::string model_;
  int64_t created_s_;
  bool include_usage_;
};

}  // namespace ems::pdc::api
