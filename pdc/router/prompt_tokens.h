#pragma once
// A prompt's text as the model's tokens: kBeginToken, then byte by byte, with the roles of a
// conversation (api/chat_template.h) as the special tokens they are. So a turn's prompt with the
// answer, which the model ends with kTurnEndToken, begins the next turn's prompt: its KV is reused.
#include <cstdint>
#include <string_view>
#include <vector>

#include "pdc/engine/tokenizer.h"

namespace ems::pdc {

// Bytes that only look like a role, or name one that has no token, stay bytes: nothing is lost.
// Valid UTF-8 makes no special token but the first. Cost: O(bytes).
std::vector<TokenId> PromptTokens(std::string_view text);

}  // namespace ems::pdc
