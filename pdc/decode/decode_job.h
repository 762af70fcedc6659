#pragma once
// A task of a decode worker from start to end, attempt by attempt: the request, the part of the
// answer that is out, and the KV of this attempt.
//
// Invariant: `answer` only grows, and is what the sink has got; prompt and answer are the prompt of
// the next attempt. Threading: of one thread at a time: of the admission while it waits, of an
// intake until its KV is here, then of the decode loop; what the admission's lock guards is marked.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "pdc/decode/decode_peer.h"
#include "pdc/engine/generation.h"
#include "pdc/prefill/prefill_worker.h"

namespace ems::pdc {

class KvIntake;

struct DecodeJob {
  DecodeJob(DecodeTask spec_in, std::shared_ptr<DecodeSink> sink_in)
      : spec(std::move(spec_in)), sink(std::move(sink_in)) {}

  // What an attempt has to compute first.
  std::vector<TokenId> Tokens() const {
    std::vector<TokenId> tokens = spec.prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    return tokens;
  }
  // What is left to be generated.
  GenerationOptions Options() const {
    return {.sampler = spec.sampler,
            .tokens_max = spec.tokens_max - static_cast<uint32_t>(answer.size()),
            .stop_at_end = spec.stop_at_end};
  }
  // Why it is over before its time, if it is.
  std::optional<Status> Over() const {
    if (cancelled.load(std::memory_order_acquire))
      return Error(StatusCode::kCancelled, "cancelled");
    if (spec.deadline.Passed())
      return Error(StatusCode::kDeadlineExceeded, "the request's time is over");
    return std::nullopt;
  }

  const DecodeTask spec;
  const std::shared_ptr<DecodeSink> sink;
  std::vector<TokenId> answer;           // what the sink has got
  std::optional<Generation> generation;  // of this attempt
  size_t told = 0;                       // of its answer
  uint32_t saved = 0;                    // tokens of its KV that were given to the cache
  PrefillOutcome first;
  FinishReason finished = FinishReason::kNone;  // with its first token
  bool prompt_told = false;
  uint32_t attempts = 0;  // since the last one that brought a token
  TimePoint waits_since = Clock::System().Now();
  const KvIntake* lost_at = nullptr;  // the last one is not asked again if there is another
  std::atomic<bool> cancelled{false};
  uint64_t order = 0;  // of coming; set once, before anybody else has it
  // Under the admission's lock:
  bool admitted = false;
  bool gives_way = false;      // while arriving: its blocks are wanted back
  KvIntake* intake = nullptr;  // that it is under way at
  uint64_t handoff = 0;
};

// The order in which tasks wait, and keep their blocks.
inline bool IsOlder(const std::shared_ptr<DecodeJob>& a, const std::shared_ptr<DecodeJob>& b) {
  return a->order < b->order;
}

}  // namespace ems::pdc
