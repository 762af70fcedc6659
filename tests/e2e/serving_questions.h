#pragma once
// What is asked of a serving loop whose answers are to be compared with those of the engine alone:
// random prompts and conversations of several turns, and what the engine alone makes of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "pdc/engine/generation.h"
#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc::test {

inline constexpr uint32_t kPage = 16;  // tokens of a block, here and in the pool

// One request, and the engine's own answer to it, computed from nothing and without guesses.
struct Turn {
  std::string salt{};
  std::vector<TokenId> prompt{};
  uint32_t tokens_max = 16;
  bool stop_at_end = true;
  SamplerOptions sampler{};
  std::vector<TokenId> answer{};
  std::vector<float> tail_logits{};  // of the tokens after the last block that may be loaded

  // Of the prompt that may be loaded: all whole blocks, but never the last token.
  uint32_t loadable_tokens() const {
    return static_cast<uint32_t>(prompt.size() - 1) / kPage * kPage;
  }
};

// Turns of a conversation: each prompt is the one before, its answer, and something new. A plain
// prompt is a conversation of one turn.
using Conversation = std::vector<Turn>;

// Answers with an engine that knows no pool.
class EngineAlone final {
 public:
  explicit EngineAlone(const ModelConfig& config) : rig_(config, {.block_tokens = kPage}) {}

  const std::shared_ptr<const Model>& model() const { return rig_.model; }
  void Answer(Turn* turn) {
    Generation generation(KvSequence(rig_.arena.get()), turn->prompt,
                          {.sampler = turn->sampler,
                           .tokens_max = turn->tokens_max,
                           .stop_at_end = turn->stop_at_end,
                           .draft = false});
    ASSERT_EQ(Prefill(rig_.engine.get(), &generation), OkStatus());
    Generation* const batch[] = {&generation};
    while (generation.finished() == FinishReason::kNone)
      ASSERT_EQ(DecodeStep(rig_.engine.get(), batch), OkStatus());
    turn->answer.assign(generation.answer().begin(), generation.answer().end());
    const std::vector<float> logits = rig_.LogitsFor(turn->prompt);
    const size_t vocab = rig_.model->config().vocab;
    turn->tail_logits.assign(
        logits.begin() + static_cast<ptrdiff_t>(turn->loadable_tokens() * vocab), logits.end());
  }

 private:
  EngineRig rig_;
};

struct QuestionOptions {
  uint32_t prompts = 0;        // plain ones
  uint32_t conversations = 0;  // of three turns
  uint64_t seed = 1;
};

// Half of the prompts begin like an earlier one, as far as a random token or a block's end. Answers
// are greedy or drawn, end at an end token or not; three tenants.
inline std::vector<Conversation> MakeConversations(EngineAlone* engine,
                                                   const QuestionOptions& options) {
  std::mt19937_64 random(options.seed);
  const auto below = [&random](uint64_t n) { return static_cast<uint32_t>(random() % n); };
  std::vector<Conversation> all;
  for (uint32_t i = 0; i < options.prompts + options.conversations; ++i) {
    const bool plain = i < options.prompts;
    Turn turn;
    turn.salt = std::string("tenant ") + "abc"[below(3)];
    turn.tokens_max = 1 + below(plain ? 16 : 40);
    turn.stop_at_end = below(4) != 0;
    if (below(2) == 0)
      turn.sampler = {.temperature = 0.5F + static_cast<float>(below(10)) / 10,
                      .top_p = below(2) == 0 ? 1.F : 0.9F,
                      .seed = random()};
    if (!all.empty() && below(2) == 0) {
      const Turn& earlier = all[below(all.size())].front();
      size_t shared = 1 + below(earlier.prompt.size());
      if (below(2) == 0) shared = std::max<size_t>(shared / kPage * kPage, 1);
      turn.salt = earlier.salt;
      turn.prompt.assign(earlier.prompt.begin(),
                         earlier.prompt.begin() + static_cast<ptrdiff_t>(shared));
    }
    Conversation conversation;
    for (int n = 0; n < (plain ? 1 : 3); ++n) {
      // Some end with a block.
      size_t more = 1 + below(plain ? 100 : 50);
      if (below(4) == 0) more += kPage - (turn.prompt.size() + more) % kPage;
      const std::vector<TokenId> said = RandomTokens(more, random());
      turn.prompt.insert(turn.prompt.end(), said.begin(), said.end());
      engine->Answer(&turn);
      conversation.push_back(turn);
      turn.prompt.insert(turn.prompt.end(), turn.answer.begin(), turn.answer.end());
    }
    all.push_back(std::move(conversation));
  }
  return all;
}

// Which blocks a pool must have that loses none.
class KnownBlocks final {
 public:
  // All whole blocks of `tokens`.
  void Add(const std::string& salt, std::span<const TokenId> tokens) {
    for (size_t end = kPage; end <= tokens.size(); end += kPage)
      blocks_.insert(Name(salt, tokens.first(end)));
  }
  // Tokens of the leading blocks that may be loaded for `turn`.
  uint32_t LoadableOf(const Turn& turn) const {
    uint32_t end = 0;
    while (end < turn.loadable_tokens() &&
           blocks_.contains(Name(turn.salt, std::span(turn.prompt).first(end + kPage))))
      end += kPage;
    return end;
  }
  size_t size() const { return blocks_.size(); }

 private:
  static std::string Name(const std::string& salt, std::span<const TokenId> tokens) {
    std::string name = salt + '\n';
    for (const TokenId token : tokens) name += std::to_string(token) + ' ';
    return name;
  }
  std::set<std::string> blocks_;
};

}  // namespace ems::pdc::test
