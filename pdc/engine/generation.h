#pragma once
// One answer under way: the prompt, its KV, the tokens picked so far. Steps take many at once
// (continuous batching), and each goes on as if it were alone.
//
// With an MTP head, a step computes the last token and a guess of the next; when the guess is what
// the model itself picks, the step yields two tokens. The tokens are the same ones either way.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/status.h"
#include "pdc/engine/engine.h"
#include "pdc/engine/kv_sequence.h"
#include "pdc/engine/sampler.h"
#include "pdc/engine/tokenizer.h"

namespace ems::pdc {

struct GenerationOptions {
  SamplerOptions sampler{};
  uint32_t tokens_max = 128;  // of the answer; at least 1
  bool stop_at_end = true;    // at kEndToken or kTurnEndToken, which stay in the answer
  bool draft = true;          // use the MTP head where there is one
};

enum class FinishReason : uint8_t { kNone, kStop, kLength };  // kLength also: no positions left

// Whether `token` ends an answer that has `answer_tokens` with it, of `all_tokens` with the prompt.
FinishReason EndOf(TokenId token, uint64_t answer_tokens, uint64_t all_tokens,
                   const GenerationOptions& options, const ModelConfig& config);

// Invariant: once it has begun, all tokens but the last are in kv(), but for those after a failed
// step. Threading: one thread at a time. Move-only.
class Generation final {
 public:
  // `kv` may hold a cached prefix of the prompt, which is not empty.
  Generation(KvSequence kv, std::vector<TokenId> prompt, const GenerationOptions& options)
      : kv_(std::move(kv)),
        tokens_(std::move(prompt)),
        prompt_tokens_(static_cast<uint32_t>(tokens_.size())),
        options_(options),
        sampler_(options.sampler) {}

  KvSequence& kv() { return kv_; }
  std::span<const TokenId> prompt() const { return std::span(tokens_).first(prompt_tokens_); }
  std::span<const TokenId> answer() const { return std::span(tokens_).subspan(prompt_tokens_); }
  std::span<const TokenId> tokens() const { return tokens_; }  // both
  bool begun() const { return tokens_.size() > prompt_tokens_; }
  FinishReason finished() const { return finished_; }
  uint64_t drafts() const { return drafts_; }  // guesses that were checked
  uint64_t drafts_right() const { return drafts_right_; }
  // A guess from elsewhere, for the next step: of the token after the last.
  void Suggest(TokenId draft) { draft_ = draft; }
  std::optional<TokenId> draft() const { return draft_; }

 private:
  friend Status Prefill(Engine*, Generation*, const ForwardOptions&);
  friend Status DecodeStep(Engine*, std::span<Generation* const>);
  friend Status TakeOver(Engine*, Generation*, TokenId);
  // Appends a picked token and decides whether it was the last.
  void Append(TokenId token, const ModelConfig& config);

  KvSequence kv_;
  std::vector<TokenId> tokens_;
  uint32_t prompt_tokens_;
  GenerationOptions options_;
  Sampler sampler_;
  std::optional<TokenId> draft_;
  FinishReason finished_ = FinishReason::kNone;
  uint64_t drafts_ = 0, drafts_right_ = 0;
};

// Computes what kv() lacks of the prompt, at least its last token, and picks the first token.
// Errors: those of Engine::Forward; what has been computed stays, and a call may go on from there
//   kInvalidArgument  an empty prompt, options out of range    kFailedPrecondition  it has begun
Status Prefill(Engine* engine, Generation* generation, const ForwardOptions& options = {});

// For a decode worker: the whole prompt's KV is in kv(), and a prefill worker picked `first`.
// Errors: kFailedPrecondition  KV is missing, or it has begun    kInvalidArgument  as Prefill
Status TakeOver(Engine* engine, Generation* generation, TokenId first);

// One or two more tokens for each of `batch`, all begun and not finished.
// Errors: those of Engine::Forward; nothing has changed but reserved blocks.
Status DecodeStep(Engine* engine, std::span<Generation* const> batch);

}  // namespace ems::pdc
