#pragma once
// One request in the router: the answer so far, and the next task for a decode worker. After a
// failure that task is the prompt with the answer so far, and the rest of the tokens: the next
// token depends on those before it and on the seed alone.
//
// Pure bookkeeping: no clock, no I/O. Threading: one thread.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "pdc/api/generate.h"
#include "pdc/decode/decode_peer.h"
#include "pdc/scheduling/request.h"

namespace ems::pdc {

// What decode workers that serve `model` are to do for a client; without an id, and with seed 0
// where the client gave none. Errors: kInvalidArgument  another model, an unknown token, a text and
// tokens, no room in the context, sampling out of range
Result<DecodeTask> TaskFor(const api::ModelInfo& model, api::GenerateRequest request);

class RoutedRequest final {
 public:
  // `sequence`: its place among the requests of a router. `task`: the whole request, without an id.
  RoutedRequest(uint64_t sequence, DecodeTask task, std::shared_ptr<api::GenerationSink> sink);

  uint64_t sequence() const { return sequence_; }
  api::GenerationSink& sink() const { return *sink_; }
  Deadline deadline() const { return rest_.deadline; }
  uint32_t prompt_tokens() const { return prompt_tokens_; }
  uint32_t answer_tokens() const {
    return static_cast<uint32_t>(rest_.prompt.size()) - prompt_tokens_;
  }

  // What a worker is to do now, as attempt `id`.
  DecodeTask NextTask(uint64_t id) const;
  // The same as a size: KV in whole blocks of `block_tokens`, `reserve_tokens` at most expected of
  // the rest of the answer.
  Request Sizes(uint64_t id, uint64_t block_tokens, uint64_t reserve_tokens) const;
  // Adds tokens of the current attempt. Returns how many of them belong to the answer: those after
  // its end do not.
  size_t Take(std::span<const TokenId> tokens);
  // How the answer ended, once it is whole.
  std::optional<api::FinishReason> complete() const { return complete_; }

  // True once: the client is to hear of the prompt now.
  bool PromptIsNews();
  // An attempt begins, and brings nothing until Take.
  void BeginAttempt() { ++fruitless_; }
  // It was none: the worker had no place for it.
  void TakeAttemptBack() { fruitless_ -= fruitless_ > 0 ? 1 : 0; }
  // Attempts since the last one that brought a token; the current one included while it has not.
  uint32_t fruitless_attempts() const { return fruitless_; }

  // The worker that has the request, if any, and the KV charged there; the router's to keep.
  struct Place {
    uint64_t attempt = 0;  // 0: none, it waits
    int peer = 0;
    uint64_t kv_tokens = 0;  // charged
    TimePoint waiting_since{};
    std::string last_failure{};
  } place{};

 private:
  const uint64_t sequence_;
  DecodeTask rest_;  // still to be done; the prompt is all tokens so far
  const uint32_t prompt_tokens_;
  const std::shared_ptr<api::GenerationSink> sink_;
  std::optional<api::FinishReason> complete_;
  bool prompt_told_ = false;
  uint32_t fruitless_ = 0;
};

}  // namespace ems::pdc
