#include "pdc/engine/generation.h"

#include <array>
#include <utility>

#include "common/check.h"

namespace ems::pdc {
namespace {

Status CheckNew(const Generation& generation, const GenerationOptions& options) {
  if (generation.begun())
    return Error(StatusCode::kFailedPrecondition, "the answer has {} tokens already",
                 generation.answer().size());
  if (generation.prompt().empty())
    return Error(StatusCode::kInvalidArgument, "the prompt is empty");
  if (options.tokens_max == 0) return Error(StatusCode::kInvalidArgument, "tokens_max is 0");
  return Sampler::Check(options.sampler);
}

}  // namespace

FinishReason EndOf(TokenId token, uint64_t answer_tokens, uint64_t all_tokens,
                   const GenerationOptions& options, const ModelConfig& config) {
  if (options.stop_at_end && (token == kEndToken || token == kTurnEndToken))
    return FinishReason::kStop;
  if (answer_tokens >= options.tokens_max || all_tokens > config.positions_max)
    return FinishReason::kLength;
  return FinishReason::kNone;
}

void Generation::Append(TokenId token, const ModelConfig& config) {
  EMS_CHECK(finished_ == FinishReason::kNone, "token {} after the end of the answer", token);
  tokens_.push_back(token);
  finished_ = EndOf(token, answer().size(), tokens_.size(), options_, config);
}

Status Prefill(Engine* engine, Generation* generation, const ForwardOptions& options) {
  Generation& g = *generation;
  EMS_RETURN_IF_ERROR(CheckNew(g, g.options_));
  g.kv_.Truncate(g.prompt_tokens_ - 1);
  const ForwardItem item{&g.kv_, g.prompt().subspan(g.kv_.tokens())};
  EMS_ASSIGN_OR_RETURN(const ForwardOutput output, engine->Forward({&item, 1}, options));
  g.Append(g.sampler_.Pick(output.logits_of(0), g.tokens_.size()), engine->model().config());
  if (!engine->model().config().mtp || !g.options_.draft || g.finished_ != FinishReason::kNone)
    return OkStatus();
  const DraftItem draft{&g.kv_, output.hidden_row(0), g.tokens_.back()};
  EMS_ASSIGN_OR_RETURN(const std::vector<TokenId> drafts, engine->Draft({&draft, 1}));
  g.draft_ = drafts[0];
  return OkStatus();
}

Status TakeOver(Engine* engine, Generation* generation, TokenId first) {
  Generation& g = *generation;
  EMS_RETURN_IF_ERROR(CheckNew(g, g.options_));
  if (g.kv_.tokens() != g.prompt_tokens_)
    return Error(StatusCode::kFailedPrecondition, "KV of {} tokens for a prompt of {}",
                 g.kv_.tokens(), g.prompt_tokens_);
  g.Append(first, engine->model().config());
  return OkStatus();
}

Status DecodeStep(Engine* engine, std::span<Generation* const> batch) {
  const ModelConfig& config = engine->model().config();
  std::vector<std::array<TokenId, 2>> tokens(batch.size());
  std::vector<ForwardItem> items;
  for (size_t i = 0; i < batch.size(); ++i) {
    Generation& g = *batch[i];
    if (!g.begun() || g.finished_ != FinishReason::kNone)
      return Error(StatusCode::kFailedPrecondition, "answer {} of the batch has {}", i,
                   g.begun() ? "ended" : "not begun");
    // A guess that could not be used is not computed.
    const bool guess = g.draft_ && *g.draft_ < config.vocab &&
                       g.answer().size() + 1 < g.options_.tokens_max &&
                       g.tokens_.size() < config.positions_max;
    tokens[i] = {g.tokens_.back(), guess ? *g.draft_ : 0};
    items.push_back({&g.kv_, std::span(tokens[i]).first(guess ? 2 : 1), LogitsOf::kAll});
  }
  EMS_ASSIGN_OR_RETURN(const ForwardOutput output, engine->Forward(items));

  std::vector<Generation*> drafting;
  std::vector<DraftItem> drafts;
  for (size_t i = 0; i < batch.size(); ++i) {
    Generation& g = *batch[i];
    uint32_t row = output.first_row[i];
    g.Append(g.sampler_.Pick(output.row(row), g.tokens_.size()), config);
    if (items[i].tokens.size() == 2) {
      ++g.drafts_;
      const bool right = g.tokens_.back() == tokens[i][1];
      if (right) ++g.drafts_right_;
      if (right && g.finished_ == FinishReason::kNone) {
        g.Append(g.sampler_.Pick(output.row(++row), g.tokens_.size()), config);
      } else {
        g.kv_.Truncate(g.kv_.tokens() - 1);  // of a token that is not there
      }
    }
    g.draft_.reset();
    if (!config.mtp || !g.options_.draft || g.finished_ != FinishReason::kNone) continue;
    drafting.push_back(&g);
    drafts.push_back({&g.kv_, output.hidden_row(row), g.tokens_.back()});
  }
  if (drafts.empty()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(const std::vector<TokenId> guesses, engine->Draft(drafts));
  for (size_t i = 0; i < drafting.size(); ++i) drafting[i]->draft_ = guesses[i];
  return OkStatus();
}

}  // namespace ems::pdc
