#pragma once
// Metrics of the API, under the names that vLLM's dashboards know, with ems_pdc_ for vllm:.
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "fabric/http/http_options.h"
#include "pdc/api/completion_reply.h"
#include "pdc/api/generate.h"

namespace ems::pdc::api {

// The times of one generation's events; the epoch: not yet.
struct GenerationTimes {
  TimePoint arrived{};  // the request was whole
  TimePoint prompt{};   // it left the queue
  TimePoint first{};    // its first token came
  TimePoint last{};     // … its latest
};

enum class Ending { kStop, kLength, kAbort, kError };

// Of one model. Threading: thread-safe.
class ModelMetrics final {
 public:
  ModelMetrics(MetricsRegistry* registry, const std::string& model);

  void OnQueued() const;
  // Its prompt has left the queue.
  void OnRunning(const GenerationTimes& times, const PromptUsage& prompt) const;
  // Tokens of one step at `now`; `times` as before them.
  void OnTokens(const GenerationTimes& times, TimePoint now, uint32_t tokens) const;
  // The generator has said its last word of one that was queued.
  void OnReleased(bool was_running) const;
  // The client has its answer, or has none to expect.
  void OnEnded(const GenerationTimes& times, TimePoint now, const TokenUsage& usage,
               Ending ending) const;

 private:
  Gauge running_, waiting_;
  Counter prompt_tokens_, generation_tokens_, cache_queries_, cache_hits_;
  std::array<Counter, 4> endings_;
  Histogram time_to_first_token_, inter_token_latency_, time_per_output_token_, e2e_latency_;
  Histogram queue_time_, prefill_time_, decode_time_, request_prompt_tokens_,
      request_generation_tokens_;
};

// Threading: thread-safe. `registry` must outlive it and every generation.
class ApiMetrics final {
 public:
  ApiMetrics(MetricsRegistry* registry, const std::vector<ModelInfo>& models);

  // `model` is one of those that were given.
  const ModelMetrics& model(const std::string& model) const { return models_.at(model); }
  const fabric::HttpMetrics& http() const { return http_; }
  // An answer with this status. `path` is one of a few.
  void OnAnswer(const std::string& path, int status) const;

 private:
  MetricsRegistry* registry_;
  std::map<std::string, ModelMetrics> models_;
  fabric::HttpMetrics http_;
};

}  // namespace ems::pdc::api
