#include "bench/serve/serve_workload.h"

#include <fmt/format.h>

#include <cmath>
#include <random>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/hash.h"

namespace ems::bench {
namespace {

constexpr uint64_t kWordBytesMax = 9;
constexpr uint64_t kBlockTokensMin = 16;  // of the pool; a suffix says in less which one it is

uint64_t SeedOf(uint64_t seed, std::string_view what, uint64_t a, uint64_t b = 0) {
  return Hash64(AsBytes(fmt::format("{} {} {}", what, a, b)), seed);
}

}  // namespace

std::string MakeText(uint64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  text.reserve(tokens + kWordBytesMax + 1);
  while (text.size() < tokens) {
    uint64_t bits = random();
    const uint64_t letters = 2 + bits % (kWordBytesMax - 1);
    bits >>= 8;
    for (uint64_t i = 0; i < letters; ++i, bits /= 26)
      text += static_cast<char>('a' + static_cast<char>(bits % 26));
    text += ' ';
  }
  text.resize(tokens);
  return text;
}

ChatWorkload::ChatWorkload(const ChatSettings& settings) : settings_(settings) {
  for (uint64_t i = 0; i < settings.conversations; ++i) {
    const uint64_t system = settings.shared_system ? 0 : i;
    conversations_.push_back(
        {.prompt = MakeText(settings.system_tokens, SeedOf(settings.seed, "system", system)) +
                   UserTurn(i, 0),
         .repeated = settings.shared_system && i > 0 ? settings.system_tokens : 0});
  }
}

std::string ChatWorkload::UserTurn(uint64_t conversation, uint64_t round) const {
  return "\nuser: " +
         MakeText(settings_.user_tokens, SeedOf(settings_.seed, "user", conversation, round)) +
         "\nassistant: ";
}

const std::string& ChatWorkload::prompt(uint64_t conversation) const {
  EMS_CHECK(conversation < conversations_.size());
  return conversations_[conversation].prompt;
}

void ChatWorkload::Answer(uint64_t conversation, std::string_view answer) {
  EMS_CHECK(conversation < conversations_.size());
  Conversation& one = conversations_[conversation];
  one.repeated = one.prompt.size();
  one.prompt.append(answer).append(UserTurn(conversation, ++one.round));
}

uint64_t ChatWorkload::repeated_tokens(uint64_t conversation) const {
  EMS_CHECK(conversation < conversations_.size());
  return conversations_[conversation].repeated;
}

Result<std::vector<PrefixGroup>> MakeSharedPrefix(const SharedPrefixSettings& settings) {
  if (!(settings.reuse > 0 && settings.reuse < 1))
    return Error(StatusCode::kInvalidArgument, "a reuse of {}: between 0 and 1", settings.reuse);
  if (settings.groups == 0 || settings.prompts < settings.groups ||
      settings.block_tokens < kBlockTokensMin) {
    return Error(StatusCode::kInvalidArgument, "{} prompts in {} groups, blocks of {} tokens",
                 settings.prompts, settings.groups, settings.block_tokens);
  }
  // 0.9 of 10 blocks are 9, although 0.9 is a little less.
  const double blocks = settings.reuse * static_cast<double>(settings.prompt_tokens) /
                        static_cast<double>(settings.block_tokens);
  const uint64_t shared = static_cast<uint64_t>(blocks + 1e-6) * settings.block_tokens;
  if (shared == 0 || settings.prompt_tokens < shared + settings.block_tokens)
    return Error(StatusCode::kInvalidArgument,
                 "{:g} of {} tokens: at least a block of {} has to be shared, and one not",
                 settings.reuse, settings.prompt_tokens, settings.block_tokens);
  std::vector<PrefixGroup> groups;
  for (uint64_t group = 0; group < settings.groups; ++group) {
    const std::string prefix = MakeText(shared, SeedOf(settings.seed, "prefix", group));
    const auto prompt = [&](uint64_t number) {
      const std::string head = fmt::format("#{}: ", number);
      return prefix + head +
             MakeText(settings.prompt_tokens - shared - head.size(),
                      SeedOf(settings.seed, "suffix", group, number));
    };
    PrefixGroup made{.prime = prompt(0), .prompts = {}, .shared_tokens = shared};
    for (uint64_t i = group; i < settings.prompts; i += settings.groups)
      made.prompts.push_back(prompt(made.prompts.size() + 1));
    groups.push_back(std::move(made));
  }
  return groups;
}

}  // namespace ems::bench
