#include "pdc/engine/tokenizer.h"

namespace ems::pdc {

void AppendTokens(std::string_view text, std::vector<TokenId>* tokens) {
  tokens->reserve(tokens->size() + text.size());
  for (const char c : text) tokens->push_back(static_cast<unsigned char>(c));
}

std::string Detokenize(std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens)
    if (token < kByteTokens) text.push_back(static_cast<char>(static_cast<unsigned char>(token)));
  return text;
}

}  // namespace ems::pdc
