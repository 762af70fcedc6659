#pragma once
// Text ⇄ tokens, byte by byte: token 0–255 is that byte, special tokens follow. No text is lost,
// and no text makes a special token.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ems::pdc {

using TokenId = uint32_t;

inline constexpr TokenId kByteTokens = 256;
inline constexpr TokenId kBeginToken = 256;  // of every prompt
inline constexpr TokenId kEndToken = 257;    // the model has finished
inline constexpr TokenId kSystemToken = 258;
inline constexpr TokenId kUserToken = 259;
inline constexpr TokenId kAssistantToken = 260;
inline constexpr TokenId kTurnEndToken = 261;
inline constexpr TokenId kToolToken = 262;
inline constexpr TokenId kPadToken = 263;
inline constexpr TokenId kTokens = 264;

// The bytes of `text`, appended.
void AppendTokens(std::string_view text, std::vector<TokenId>* tokens);
// The bytes that tokens stand for; special tokens and unknown ones stand for none.
std::string Detokenize(std::span<const TokenId> tokens);

}  // namespace ems::pdc
