#include "bench/engine/engine_bench.h"

#include <algorithm>
#include <utility>

#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "common/clock.h"
#include "pdc/engine/arithmetic_rates.h"

namespace ems::bench {
namespace {

using pdc::ForwardItem;
using pdc::KvSequence;
using pdc::LogitsOf;
using pdc::TokenId;

// Text-like: bytes, never the same twice in a row.
std::vector<TokenId> Prompt(uint32_t tokens, uint32_t salt) {
  std::vector<TokenId> prompt(tokens);
  uint32_t state = salt * 2654435761U + 1;
  for (TokenId& token : prompt) {
    state = state * 1664525U + 1013904223U;
    token = 32 + (state >> 24) % 95;
  }
  return prompt;
}

}  // namespace

EngineBench::EngineBench(const EngineBenchSettings& settings,
                         std::shared_ptr<const pdc::Model> model)
    : settings_(settings), model_(std::move(model)) {}

Result<std::unique_ptr<EngineBench>> EngineBench::Create(const EngineBenchSettings& settings) {
  EMS_ASSIGN_OR_RETURN(const pdc::ModelWeights weights, pdc::ModelWeights::Make(settings.config));
  std::unique_ptr<EngineBench> bench(
      new EngineBench(settings, pdc::Model::Make(weights)));  // NOLINT: the constructor is private
  const uint32_t batch = *std::max_element(settings.batches.begin(), settings.batches.end());
  const uint32_t longest =
      std::max(*std::max_element(settings.prompts.begin(), settings.prompts.end()),
               settings.prompt_tokens + settings.decode_steps + 1);
  // Decoding sequences share their prompt's whole blocks.
  const uint64_t blocks = longest / settings.kv.block_tokens + 2 +
                          uint64_t{batch} * (2 + settings.decode_steps / settings.kv.block_tokens);
  bench->memory_.resize(blocks * pdc::KvArena::BlockBytes(settings.config, settings.kv));
  EMS_ASSIGN_OR_RETURN(bench->arena_,
                       pdc::KvArena::Create(settings.config, settings.kv, bench->memory_));
  EMS_ASSIGN_OR_RETURN(bench->engine_, pdc::Engine::Create(bench->model_, settings.engine));
  return bench;
}

Result<PrefillResult> EngineBench::Prefill(uint32_t prompt, uint32_t cached,
                                           const std::function<bool()>& wanted) {
  const std::vector<TokenId> tokens = Prompt(prompt, 1);
  KvSequence kv(arena_.get());
  if (cached > 0) {
    const ForwardItem item{&kv, std::span(tokens).first(cached), LogitsOf::kNone};
    EMS_RETURN_IF_ERROR(engine_->Forward({&item, 1}).status());
  }
  PrefillResult result;
  result.prompt = prompt;
  result.cached = cached;
  for (uint32_t round = 0; round < settings_.rounds; ++round) {
    if (!wanted()) return Interruption();
    kv.Truncate(cached);
    const ForwardItem item{&kv, std::span(tokens).subspan(cached)};
    const TimePoint begin = Clock::System().Now();
    EMS_RETURN_IF_ERROR(engine_->Forward({&item, 1}).status());
    const double seconds = SecondsSince(begin);
    if (round == 0 || seconds < result.seconds) result.seconds = seconds;
  }
  result.tokens_per_s = (prompt - cached) / result.seconds;
  result.gflops =
      pdc::PrefillOperations(model_->config(), cached, prompt - cached) / result.seconds / 1e9;
  return result;
}

Result<std::vector<PrefillResult>> EngineBench::Prefills(const std::function<bool()>& wanted) {
  std::vector<PrefillResult> results;
  for (const uint32_t prompt : settings_.prompts) {
    EMS_ASSIGN_OR_RETURN(results.emplace_back(), Prefill(prompt, 0, wanted));
  }
  return results;
}

Result<std::vector<PrefillResult>> EngineBench::Reuse(const std::function<bool()>& wanted) {
  std::vector<PrefillResult> results;
  const uint32_t prompt = settings_.prompt_tokens, block = settings_.kv.block_tokens;
  for (const uint32_t percent : settings_.reuse_percent) {
    const uint32_t cached = static_cast<uint32_t>(uint64_t{prompt} * percent / 100) / block * block;
    EMS_ASSIGN_OR_RETURN(results.emplace_back(),
                         Prefill(prompt, std::min(cached, prompt - 1), wanted));
  }
  return results;
}

Result<DecodeResult> EngineBench::Decode(uint32_t batch, const std::function<bool()>& wanted) {
  const std::vector<TokenId> tokens = Prompt(settings_.prompt_tokens, 2);
  KvSequence base(arena_.get());
  const ForwardItem all{&base, tokens, LogitsOf::kNone};
  EMS_RETURN_IF_ERROR(engine_->Forward({&all, 1}).status());
  std::vector<KvSequence> sequences;
  for (uint32_t i = 0; i < batch; ++i) {
    EMS_ASSIGN_OR_RETURN(KvSequence fork, base.Fork());
    sequences.push_back(std::move(fork));
  }
  base.Clear();
  const std::vector<TokenId> next = Prompt(batch * settings_.decode_steps, 3);
  DecodeResult result;
  result.batch = batch;
  result.context = settings_.prompt_tokens;
  for (uint32_t step = 0; step < settings_.decode_steps; ++step) {
    if (!wanted()) return Interruption();
    std::vector<ForwardItem> items;
    for (uint32_t i = 0; i < batch; ++i)
      items.push_back({&sequences[i], std::span(next).subspan(step * batch + i, 1)});
    const TimePoint begin = Clock::System().Now();
    EMS_RETURN_IF_ERROR(engine_->Forward(items).status());
    const double ms = SecondsSince(begin) * 1e3;
    if (step == 0 || ms < result.step_ms) result.step_ms = ms;
  }
  result.tokens_per_s = batch * 1e3 / result.step_ms;
  return result;
}

Result<std::vector<DecodeResult>> EngineBench::Decodes(const std::function<bool()>& wanted) {
  std::vector<DecodeResult> results;
  for (const uint32_t batch : settings_.batches) {
    EMS_ASSIGN_OR_RETURN(results.emplace_back(), Decode(batch, wanted));
  }
  return results;
}

}  // namespace ems::bench
