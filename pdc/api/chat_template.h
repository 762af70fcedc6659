#pragma once
// The chat template, which makes one prompt of a conversation: each message is
//
//   0xFD  role  0xFE  content  0xFF
//
// and the prompt ends with 0xFD "assistant" 0xFE, after which the model writes; 0xFF ends its turn.
// The three bytes occur in no valid UTF-8, so nothing that a user writes looks like a role. The
// prompt of a turn and its answer are a prefix of the next turn's prompt, so that its KV is reused.
#include <string>
#include <string_view>
#include <vector>

namespace ems::pdc::api {

struct ChatMessage {
  std::string role;     // system, developer, user or assistant
  std::string content;  // valid UTF-8
};

inline constexpr char kRoleByte = '\xFD';
inline constexpr char kContentByte = '\xFE';
inline constexpr char kEndOfTurnByte = '\xFF';

std::string ChatPrompt(const std::vector<ChatMessage>& messages);

}  // namespace ems::pdc::api
