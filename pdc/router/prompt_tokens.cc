#include "pdc/router/prompt_tokens.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "pdc/api/chat_template.h"

namespace ems::pdc {
namespace {

constexpr std::pair<std::string_view, TokenId> kRoles[] = {{"system", kSystemToken},
                                                           {"developer", kSystemToken},
                                                           {"user", kUserToken},
                                                           {"assistant", kAssistantToken},
                                                           {"tool", kToolToken}};

// The role that `text` begins with, after its first byte; the length counts all three parts.
std::optional<std::pair<TokenId, size_t>> RoleAt(std::string_view text) {
  for (const auto& [name, token] : kRoles) {
    if (text.substr(1, name.size()) == name && text.size() > name.size() + 1 &&
        text[name.size() + 1] == api::kContentByte)
      return std::pair(token, name.size() + 2);
  }
  return std::nullopt;
}

}  // namespace

std::vector<TokenId> PromptTokens(std::string_view text) {
  std::vector<TokenId> tokens;
  tokens.reserve(text.size() + 1);
  tokens.push_back(kBeginToken);
  while (!text.empty()) {
    if (text.front() == api::kRoleByte) {
      if (const auto role = RoleAt(text)) {
        tokens.push_back(role->first);
        text.remove_prefix(role->second);
        continue;
      }
    }
    tokens.push_back(text.front() == api::kEndOfTurnByte
                         ? kTurnEndToken
                         : static_cast<TokenId>(static_cast<unsigned char>(text.front())));
    text.remove_prefix(1);
  }
  return tokens;
}

}  // namespace ems::pdc
