#include "pdc/api/chat_template.h"

namespace ems::pdc::api {

std::string ChatPrompt(const std::vector<ChatMessage>& messages) {
  std::string prompt;
  for (const ChatMessage& message : messages) {
    prompt += kRoleByte;
    prompt += message.role;
    prompt += kContentByte;
    prompt += message.content;
    prompt += kEndOfTurnByte;
  }
  prompt += kRoleByte;
  prompt += "assistant";
  prompt += kContentByte;
  return prompt;
}

}  // namespace ems::pdc::api
