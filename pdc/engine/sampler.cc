#include "pdc/engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "pdc/engine/internal/counter_random.h"

namespace ems::pdc {

Status Sampler::Check(const SamplerOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= 100))
    return Error(StatusCode::kInvalidArgument, "temperature is {}, it has to be 0 to 100",
                 options.temperature);
  if (!(options.top_p > 0 && options.top_p <= 1))
    return Error(StatusCode::kInvalidArgument, "top_p is {}, it has to be above 0 and at most 1",
                 options.top_p);
  return OkStatus();
}

Status CheckPrompt(std::span<const TokenId> prompt, uint64_t tokens_max, uint32_t vocab,
                   const SamplerOptions& sampler) {
  if (prompt.empty()) return Error(StatusCode::kInvalidArgument, "an empty prompt");
  if (prompt.size() > tokens_max)
    return Error(StatusCode::kInvalidArgument, "a prompt of {} tokens, {} at most", prompt.size(),
                 tokens_max);
  const auto unknown = std::ranges::find_if(prompt, [&](TokenId token) { return token >= vocab; });
  if (unknown != prompt.end())
    return Error(StatusCode::kInvalidArgument, "token {} of the prompt is {}, {} are known",
                 unknown - prompt.begin(), *unknown, vocab);
  return Sampler::Check(sampler);
}

TokenId Greedy(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TokenId Sampler::Pick(std::span<const float> logits, uint64_t position) {
  EMS_CHECK(!logits.empty(), "no logits for position {}", position);
  const TokenId best = Greedy(logits);
  if (options_.temperature <= 0) return best;
  const double scale = 1.0 / static_cast<double>(options_.temperature);
  const double top = static_cast<double>(logits[best]);
  if (!std::isfinite(top)) return best;  // broken KV; there is nothing to weigh
  candidates_.clear();
  double sum = 0;
  for (TokenId token = 0; token < logits.size(); ++token) {
    const double weight = std::exp((static_cast<double>(logits[token]) - top) * scale);
    if (!(weight > 0)) continue;  // nor is a NaN a candidate
    candidates_.push_back({weight, token});
    sum += weight;
  }
  if (options_.top_p < 1) {
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
    const double enough = sum * static_cast<double>(options_.top_p);
    double kept = 0;
    size_t count = 0;
    while (count < candidates_.size() && kept < enough) kept += candidates_[count++].weight;
    candidates_.resize(std::max<size_t>(count, 1));
    sum = kept;
  }
  double left = internal::UnitRandom(options_.seed, position) * sum;
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates_.back().token;
}

}  // namespace ems::pdc
