#include "bench/trace/conversation.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "common/hash.h"

namespace ems::bench {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kBlockBytes = kTraceBlockTokens * kTextBytesPerToken;
constexpr uint64_t kOutputTokensMax = uint64_t{1} << 32;

uint64_t TokensOf(uint64_t bytes) {
  return RoundUp(bytes, kTextBytesPerToken) / kTextBytesPerToken;
}

// Takes text and keeps its blocks' names. Threading: one thread.
class Writer final {
 public:
  void Say(std::string_view text) {
    bytes_ += text.size();
    tail_ += text;
    size_t done = 0;
    for (; tail_.size() - done >= kBlockBytes; done += kBlockBytes)
      made_.blocks.push_back(Chained(std::string_view(tail_).substr(done, kBlockBytes)));
    tail_.erase(0, done);
  }
  // All text so far is a prompt; one without text is none.
  void Ask() {
    if (bytes_ > 0) made_.turns.push_back({.prompt_bytes = bytes_, .last_block = Chained(tail_)});
  }
  void Answer(uint64_t tokens) {
    if (!made_.turns.empty()) made_.turns.back().output_tokens += tokens;
  }
  Conversation Take() { return std::move(made_); }

 private:
  uint64_t Chained(std::string_view text) const {
    return Hash64(AsBytes(text), made_.blocks.empty() ? 0 : made_.blocks.back());
  }

  Conversation made_;
  std::string tail_;  // less than a block
  uint64_t bytes_ = 0;
};

// The text under a name. Errors: kInvalidArgument  there is none
Result<std::string_view> TextOf(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_string())
    return Error(StatusCode::kInvalidArgument, "\"{}\" is missing or not a text", name);
  return std::string_view(at->get_ref<const std::string&>());
}

// How a data set names its parts.
struct Names {
  const char *list, *role, *text, *user, *assistant;
};
constexpr Names kShareGptNames = {"conversations", "from", "value", "human", "gpt"};
constexpr Names kMessageNames = {"messages", "role", "content", "user", "assistant"};

}  // namespace

TraceRequest Conversation::Request(size_t turn) const {
  const Turn& asked = turns[turn];
  TraceRequest request;
  request.input_tokens = TokensOf(asked.prompt_bytes);
  request.output_tokens = asked.output_tokens;
  const auto whole = static_cast<ptrdiff_t>(asked.prompt_bytes / kBlockBytes);
  request.blocks.assign(blocks.begin(), blocks.begin() + whole);
  if (asked.prompt_bytes % kBlockBytes != 0) request.blocks.push_back(asked.last_block);
  return request;
}

Result<Conversation> ParsePrompt(std::string_view object) {
  const Json json = Json::parse(object, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(StatusCode::kInvalidArgument, "not a JSON object");
  EMS_ASSIGN_OR_RETURN(const std::string_view prompt, TextOf(json, "prompt"));
  if (prompt.empty()) return Error(StatusCode::kInvalidArgument, "\"prompt\" is empty");
  Writer writer;
  writer.Say(prompt);
  writer.Ask();
  const auto output = json.find("output_tokens");
  if (output == json.end()) return writer.Take();
  if (!output->is_number_unsigned() || output->get<uint64_t>() > kOutputTokensMax)
    return Error(StatusCode::kInvalidArgument, "\"output_tokens\" must be a whole number to 2^32");
  writer.Answer(output->get<uint64_t>());
  return writer.Take();
}

Result<Conversation> ParseConversation(std::string_view object) {
  const Json json = Json::parse(object, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(StatusCode::kInvalidArgument, "not a JSON object");
  const Names& names = json.contains(kMessageNames.list) ? kMessageNames : kShareGptNames;
  const auto turns = json.find(names.list);
  if (turns == json.end() || !turns->is_array())
    return Error(StatusCode::kInvalidArgument,
                 "neither \"conversations\" nor \"messages\" is a list in it");
  Writer writer;
  for (const Json& turn : *turns) {
    EMS_ASSIGN_OR_RETURN(const std::string_view role, TextOf(turn, names.role));
    EMS_ASSIGN_OR_RETURN(const std::string_view text, TextOf(turn, names.text));
    writer.Say(text);
    if (role == names.user) writer.Ask();
    if (role == names.assistant) writer.Answer(TokensOf(text.size()));
  }
  return writer.Take();
}

}  // namespace ems::bench
