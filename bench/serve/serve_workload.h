#pragma once
// Synthetic requests for a serving loop: conversations that grow round by round, and prompts that
// share a stated part of their tokens with an earlier prompt, as a prefix. The same seed gives the
// same requests. Everything is ASCII; a byte is a token.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::bench {

struct ChatSettings {
  uint64_t conversations = 8;
  uint64_t rounds = 4;
  uint64_t system_tokens = 256;
  bool shared_system = true;  // the same for all; else each has its own, as long
  uint64_t user_tokens = 128;
  uint64_t seed = 1;
};

// Conversations under way. Threading: one thread.
class ChatWorkload final {
 public:
  explicit ChatWorkload(const ChatSettings& settings);

  // What to ask next: all that was said, and the user's next words. As long as has not ended.
  const std::string& prompt(uint64_t conversation) const;
  // Ends the round with the answer that came, and says the user's next words.
  void Answer(uint64_t conversation, std::string_view answer);
  // Leading bytes of prompt() that an earlier prompt had: of this conversation, or of the first one
  // when the system's words are shared.
  uint64_t repeated_tokens(uint64_t conversation) const;

 private:
  struct Conversation {
    std::string prompt;
    uint64_t round = 0;
    uint64_t repeated = 0;
  };
  std::string UserTurn(uint64_t conversation, uint64_t round) const;

  const ChatSettings settings_;
  std::vector<Conversation> conversations_;
};

struct SharedPrefixSettings {
  uint64_t groups = 4;
  uint64_t prompts = 16;  // of all groups together
  uint64_t prompt_tokens = 1280;
  double reuse = 0.5;           // share of a prompt, rounded down to whole blocks
  uint64_t block_tokens = 128;  // what is cached comes in blocks
  uint64_t seed = 1;
};

// Prompts that begin alike, and one to have that beginning stored. No two of them have the block
// after it in common.
struct PrefixGroup {
  std::string prime;
  std::vector<std::string> prompts;
  uint64_t shared_tokens = 0;
};

// Errors: kInvalidArgument  a share outside 0 … 1, or less than a block of a prompt to share or to
// leave; no prompts
Result<std::vector<PrefixGroup>> MakeSharedPrefix(const SharedPrefixSettings& settings);

// `tokens` bytes that look like words, by `seed`. Cost: O(tokens).
std::string MakeText(uint64_t tokens, uint64_t seed);

}  // namespace ems::bench
