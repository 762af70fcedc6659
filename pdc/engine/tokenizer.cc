#include "pdc/engine/tokenizer.h"

namespace ems::pdc {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kSpecialNames[] = {"<|begin|>", "<|end|>",       "<|system|>",
                                              "<|user|>",  "<|assistant|>", "<|turn_end|>",
                                              "<|tool|>",  "<|pad|>"};
static_assert(std::size(kSpecialNames) == kTokens - kByteTokens);

unsigned At(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

// Bytes of the character that begins with `lead`; 0: none begins so.
size_t LengthOf(unsigned lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF5) return 4;
  return 0;
}

// Whether `next` may follow a lead byte as the second: no overlong form, no surrogate, no more than
// U+10FFFF.
bool MayBeSecond(unsigned lead, unsigned next) {
  if (lead == 0xE0) return next >= 0xA0 && next < 0xC0;
  if (lead == 0xED) return next >= 0x80 && next < 0xA0;
  if (lead == 0xF0) return next >= 0x90 && next < 0xC0;
  if (lead == 0xF4) return next >= 0x80 && next < 0x90;
  return next >= 0x80 && next < 0xC0;
}

// The longest beginning of `text` that is a character or may become one; 0: none.
size_t GoodPrefix(std::string_view text) {
  const size_t length = LengthOf(At(text, 0));
  if (length == 0) return 0;
  size_t good = 1;
  while (good < length && good < text.size()) {
    const bool fits = good == 1 ? MayBeSecond(At(text, 0), At(text, 1))
                                : At(text, good) >= 0x80 && At(text, good) < 0xC0;
    if (!fits) break;
    ++good;
  }
  return good;
}

}  // namespace

void AppendTokens(std::string_view text, std::vector<TokenId>* tokens) {
  tokens->reserve(tokens->size() + text.size());
  for (const char c : text) tokens->push_back(static_cast<unsigned char>(c));
}

std::vector<TokenId> Tokenize(std::string_view text) {
  std::vector<TokenId> tokens;
  AppendTokens(text, &tokens);
  return tokens;
}

std::string Detokenize(std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens)
    if (token < kByteTokens) text.push_back(static_cast<char>(static_cast<unsigned char>(token)));
  return text;
}

std::string_view SpecialName(TokenId token) {
  return token >= kByteTokens && token < kTokens ? kSpecialNames[token - kByteTokens]
                                                 : std::string_view();
}

std::string TextStream::Push(TokenId token) {
  if (token >= kByteTokens) return {};
  waiting_.push_back(static_cast<char>(static_cast<unsigned char>(token)));
  std::string whole;
  while (!waiting_.empty()) {
    const size_t good = GoodPrefix(waiting_);
    if (good > 0 && good == LengthOf(At(waiting_, 0))) {
      whole.append(waiting_, 0, good);
      waiting_.erase(0, good);
    } else if (good == waiting_.size()) {
      break;  // may still become one
    } else {
      whole += kReplacement;
      waiting_.erase(0, good == 0 ? 1 : good);
    }
  }
  return whole;
}

std::string TextStream::Finish() {
  const bool cut = !waiting_.empty();
  waiting_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

}  // namespace ems::pdc
