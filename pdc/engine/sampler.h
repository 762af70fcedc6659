#pragma once
// Picks the next token from logits. What it draws depends on seed and position alone, so that a
// sequence goes on the same way on any worker, in whatever batch, with or without MTP.
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "pdc/engine/tokenizer.h"

namespace ems::pdc {

struct SamplerOptions {
  float temperature = 0;  // 0: always the likeliest token (of equals the lowest)
  float top_p = 1;        // only the likeliest tokens that together reach this probability
  uint64_t seed = 0;
};

// Threading: one thread.
class Sampler final {
 public:
  Sampler() : Sampler(SamplerOptions{}) {}
  explicit Sampler(const SamplerOptions& options) : options_(options) {}

  // Errors: kInvalidArgument  temperature not 0 to 100, top_p not above 0 and at most 1
  static Status Check(const SamplerOptions& options);

  // The token for `position` of its sequence. `logits`: [vocab], not empty.
  // Cost: O(vocab); sorts it when top_p is below 1.
  TokenId Pick(std::span<const float> logits, uint64_t position);

 private:
  struct Candidate {
    double weight;
    TokenId token;
  };
  SamplerOptions options_;
  std::vector<Candidate> candidates_;
};

// What no model can go on from. Errors: kInvalidArgument  no prompt, more than `tokens_max` tokens,
// a token that is not below `vocab`, options as Sampler::Check
Status CheckPrompt(std::span<const TokenId> prompt, uint64_t tokens_max, uint32_t vocab,
                   const SamplerOptions& sampler);

// The likeliest token; of equals the lowest.
TokenId Greedy(std::span<const float> logits);

}  // namespace ems::pdc
