#include "pdc/router/routed_request.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "pdc/router/prompt_tokens.h"

namespace ems::pdc {

Result<DecodeTask> TaskFor(const api::ModelInfo& model, api::GenerateRequest request) {
  if (request.model != model.name) {
    return Error(StatusCode::kInvalidArgument, "model '{}' is not served here, '{}' is",
                 request.model, model.name);
  }
  if (!request.text.empty() && !request.tokens.empty())
    return Error(StatusCode::kInvalidArgument, "a prompt is a text or tokens, not both");
  DecodeTask task{
      .prompt = request.tokens.empty() ? PromptTokens(request.text) : std::move(request.tokens),
      .stop_at_end = !request.ignore_eos,
      .cache_salt = std::move(request.cache_salt),
      .deadline = request.deadline};
  task.sampler = {.temperature = static_cast<float>(request.sampling.temperature),
                  .top_p = static_cast<float>(request.sampling.top_p),
                  .seed = request.sampling.seed.value_or(0)};
  const uint64_t context = model.context_tokens_max;
  EMS_RETURN_IF_ERROR(CheckPrompt(task.prompt, context - 1, model.vocabulary, task.sampler));
  if (request.tokens_max == 0 || request.tokens_max > context - task.prompt.size()) {
    return Error(StatusCode::kInvalidArgument,
                 "a prompt of {} tokens and {} (at least 1) more; the context has {}",
                 task.prompt.size(), request.tokens_max, context);
  }
  task.tokens_max = static_cast<uint32_t>(request.tokens_max);
  return task;
}

RoutedRequest::RoutedRequest(uint64_t sequence, DecodeTask task,
                             std::shared_ptr<api::GenerationSink> sink)
    : sequence_(sequence),
      rest_(std::move(task)),
      prompt_tokens_(static_cast<uint32_t>(rest_.prompt.size())),
      sink_(std::move(sink)) {}

DecodeTask RoutedRequest::NextTask(uint64_t id) const {
  DecodeTask task = rest_;
  task.id = id;
  return task;
}

Request RoutedRequest::Sizes(uint64_t id, uint64_t block_tokens, uint64_t reserve_tokens) const {
  const uint64_t input = rest_.prompt.size();
  // At least one more: an expected 0 would mean that nothing is known.
  const uint64_t expected =
      std::max<uint64_t>(1, std::min<uint64_t>(reserve_tokens, rest_.tokens_max));
  const uint64_t blocks = (input + expected + block_tokens - 1) / block_tokens;
  return {.id = id,
          .input_tokens = input,
          .output_tokens = blocks * block_tokens - input,
          .output_tokens_max = rest_.tokens_max};
}

size_t RoutedRequest::Take(std::span<const TokenId> tokens) {
  size_t taken = 0;
  for (const TokenId token : tokens) {
    if (complete_) break;
    EMS_CHECK(rest_.tokens_max > 0, "request {} wants no more tokens", sequence_);
    rest_.prompt.push_back(token);
    --rest_.tokens_max;
    ++taken;
    if (rest_.stop_at_end && (token == kEndToken || token == kTurnEndToken))
      complete_ = api::FinishReason::kStop;
    else if (rest_.tokens_max == 0)
      complete_ = api::FinishReason::kLength;
  }
  if (taken > 0) fruitless_ = 0;
  return taken;
}

bool RoutedRequest::PromptIsNews() { return !std::exchange(prompt_told_, true); }

}  // namespace ems::pdc
