#pragma once
// Texts of users as requests: what published data sets have in place of tokens and block ids.
//
// A token is taken to be kTextBytesPerToken bytes of text, as there is no tokenizer here, and a
// block the hash of all text up to its end: prompts that begin alike share blocks.
// Bound: memory in proportion to the text, however many turns it has.
#include <cstdint>
#include <string_view>
#include <vector>

#include "bench/trace/trace.h"
#include "common/status.h"

namespace ems::bench {

inline constexpr uint64_t kTextBytesPerToken = 4;

// Each turn asks with all text up to it. Threading: immutable once parsed.
struct Conversation {
  struct Turn {
    uint64_t prompt_bytes = 0;
    uint64_t last_block = 0;  // its name, where the prompt ends within a block
    uint64_t output_tokens = 0;
  };
  std::vector<uint64_t> blocks;  // whole ones of all text
  std::vector<Turn> turns;

  TraceRequest Request(size_t turn) const;
};

// A line of vLLM's custom data sets: {"prompt": TEXT, "output_tokens": NUMBER}; the latter may be
// missing. Errors, here and below: kInvalidArgument  says what is wrong with it
Result<Conversation> ParsePrompt(std::string_view object);
// An entry of ShareGPT, {"conversations": [{"from": "human" or "gpt", "value": TEXT}, …]}, or one
// of messages, {"messages": [{"role": "user" or "assistant", "content": TEXT}, …]}. What others
// say is text before a prompt. A user's turn is a request; there may be none.
Result<Conversation> ParseConversation(std::string_view object);

}  // namespace ems::bench
