#pragma once
// Requests of clients to decode workers: the serving loop's front, behind the HTTP API.
//
// Each request goes to the healthy worker that the DecodeBalancer picks, or waits, first come first
// served. When its worker dies, stands still or fails, it goes on with another one: the prompt
// and the answer so far are computed again, which gives the same tokens, and the client sees one
// answer. A router keeps nothing but what is under way; there may be many of them, each with books
// of its own.
//
// Invariant: a request that was taken ends in exactly one OnFinish or OnError; its tokens come once
// and in order. Bound: queue_max requests wait, but for those that failed over; batch_max a worker.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/status.h"
#include "pdc/api/generate.h"
#include "pdc/decode/decode_peer.h"
#include "pdc/router/router_metrics.h"

namespace ems::pdc {

struct RequestRouterOptions {
  uint32_t queue_max = 1024;       // requests without a worker; the next is refused
  uint64_t batch_max = 64;         // requests that a worker is given at a time
  uint64_t kv_tokens_max = 0;      // KV that a worker is given, in tokens; 0: what it says it has
  uint64_t kv_block_tokens = 1;    // a request's KV is counted in whole blocks
  uint64_t reserve_tokens = 1024;  // room kept for an answer at first; a longer one grows beyond it
  uint32_t attempts_max = 3;       // of one request, without a token in between
  Duration failover_patience = std::chrono::seconds(5);  // without any worker; then kUnavailable
  Duration heartbeat = std::chrono::milliseconds(100);   // between looks at the workers' health
};

// Threading: thread-safe. Events come on `ems-router`, its one thread, one at a time for all
// requests; destroy it elsewhere.
class RequestRouter final : public api::Generator {
 public:
  // `model` is the one that every peer serves. `registry` must outlive it.
  // Errors: kInvalidArgument  options out of range, no peers, two of a name, a model without the
  // tokenizer's special tokens
  static Result<std::unique_ptr<RequestRouter>> Create(
      const RequestRouterOptions& options, api::ModelInfo model,
      std::vector<std::shared_ptr<DecodePeer>> peers, MetricsRegistry* registry);
  ~RequestRouter() override;  // Stop
  RequestRouter(const RequestRouter&) = delete;
  RequestRouter& operator=(const RequestRouter&) = delete;

  const std::vector<api::ModelInfo>& models() const override;
  uint64_t CountTokens(const api::ModelInfo& model, std::string_view text) const override;
  // OK with at least one healthy worker that could begin something new.
  Status Ready() const override;
  // Errors: kInvalidArgument  unknown model or token, no room in the context or in any worker,
  // sampling out of range    kResourceExhausted  queue_max    kUnavailable  no healthy worker for
  // longer than failover_patience, or it is stopping.   Of OnError: those, and kDeadlineExceeded,
  // kCancelled, kUnavailable after attempts_max, or what a worker says.
  Result<std::shared_ptr<api::Generation>> Start(
      api::GenerateRequest request, std::shared_ptr<api::GenerationSink> sink) override;

  // Takes no more requests and ends all that are there (kUnavailable), cancelled where they are:
  // all sinks have been told when it returns. Idempotent; one thread (the owner).
  void Stop();

  RequestRouterStats stats() const;

 private:
  struct Impl;
  explicit RequestRouter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
