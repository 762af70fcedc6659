#include "pdc/api/api_metrics.h"

namespace ems::pdc::api {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// vLLM's own buckets, with finer ones below: a small model on a CPU answers sooner than an LLM.
std::vector<double> TtftBuckets() {
  return {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25,
          0.5,    0.75,  1,      2.5,   5,    7.5,  10,   20,   40,   80,  160};
}
std::vector<double> TokenBuckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
          0.1,    0.15,    0.2,    0.3,   0.4,    0.5,   0.75, 1,     2.5,  5};
}
std::vector<double> RequestBuckets() {
  return {0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,
          2.5,  5,     10,   15,  20,  30,  60,  120, 240, 600};
}
std::vector<double> LengthBuckets() {
  return {1,    2,    5,    10,    20,    50,    100,    200,   500,
          1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
}

constexpr std::array<const char*, 4> kEndings = {"stop", "length", "abort", "error"};

}  // namespace

ModelMetrics::ModelMetrics(MetricsRegistry* registry, const std::string& model) {
  const Labels labels = {{"model_name", model}};
  const std::string p = "ems_pdc_";
  auto counter = [&](const char* name, const char* help) {
    return registry->AddCounter(p + name, help, labels);
  };
  auto histogram = [&](const char* name, const char* help, const std::vector<double>& buckets) {
    return registry->AddHistogram(p + name, help, buckets, labels);
  };
  running_ =
      registry->AddGauge(p + "num_requests_running", "Requests in prefill or decode", labels);
  waiting_ = registry->AddGauge(p + "num_requests_waiting", "Requests in the queue", labels);
  prompt_tokens_ = counter("prompt_tokens_total", "Tokens of prompts that left the queue");
  generation_tokens_ = counter("generation_tokens_total", "Tokens generated");
  cache_queries_ = counter("prefix_cache_queries_total", "Prompt tokens looked up in the cache");
  cache_hits_ = counter("prefix_cache_hits_total", "Prompt tokens whose KV came from the cache");
  for (size_t i = 0; i < kEndings.size(); ++i) {
    Labels with_reason = labels;
    with_reason["finished_reason"] = kEndings[i];
    endings_[i] = registry->AddCounter(
        p + "request_success_total",
        "Requests that have ended: stop, length, abort (the client left), error", with_reason);
  }
  time_to_first_token_ = histogram("time_to_first_token_seconds",
                                   "From the whole request to its first token", TtftBuckets());
  inter_token_latency_ = histogram("inter_token_latency_seconds",
                                   "Between one step's tokens and the next's", TokenBuckets());
  time_per_output_token_ =
      histogram("request_time_per_output_token_seconds",
                "Mean time a token after the first, of each request", TokenBuckets());
  e2e_latency_ = histogram("e2e_request_latency_seconds",
                           "From the whole request to the end of its answer", RequestBuckets());
  queue_time_ = histogram("request_queue_time_seconds", "In the queue", RequestBuckets());
  prefill_time_ = histogram("request_prefill_time_seconds",
                            "From the queue's end to the first token", RequestBuckets());
  decode_time_ = histogram("request_decode_time_seconds", "From the first token to the last",
                           RequestBuckets());
  request_prompt_tokens_ =
      histogram("request_prompt_tokens", "Prompt tokens of a request", LengthBuckets());
  request_generation_tokens_ =
      histogram("request_generation_tokens", "Generated tokens of a request", LengthBuckets());
}

void ModelMetrics::OnQueued() const { waiting_.Add(1); }

void ModelMetrics::OnRunning(const GenerationTimes& times, const PromptUsage& prompt) const {
  waiting_.Add(-1);
  running_.Add(1);
  queue_time_.Observe(Seconds(times.prompt - times.arrived));
  prompt_tokens_.Add(static_cast<double>(prompt.prompt_tokens));
  cache_queries_.Add(static_cast<double>(prompt.prompt_tokens));
  cache_hits_.Add(static_cast<double>(prompt.cached_tokens));
}

void ModelMetrics::OnTokens(const GenerationTimes& times, TimePoint now, uint32_t tokens) const {
  generation_tokens_.Add(tokens);
  if (times.first == TimePoint()) {
    time_to_first_token_.Observe(Seconds(now - times.arrived));
    prefill_time_.Observe(Seconds(now - times.prompt));
  } else {
    inter_token_latency_.Observe(Seconds(now - times.last));
  }
}

void ModelMetrics::OnReleased(bool was_running) const {
  (was_running ? running_ : waiting_).Add(-1);
}

void ModelMetrics::OnEnded(const GenerationTimes& times, TimePoint now, const TokenUsage& usage,
                           Ending ending) const {
  endings_[static_cast<size_t>(ending)].Add();
  if (ending == Ending::kAbort || ending == Ending::kError) return;
  e2e_latency_.Observe(Seconds(now - times.arrived));
  request_prompt_tokens_.Observe(static_cast<double>(usage.prompt.prompt_tokens));
  request_generation_tokens_.Observe(static_cast<double>(usage.completion_tokens));
  if (times.first == TimePoint()) return;
  const double decode = Seconds(times.last - times.first);
  decode_time_.Observe(decode);
  if (usage.completion_tokens > 1) {
    time_per_output_token_.Observe(decode / static_cast<double>(usage.completion_tokens - 1));
  }
}

ApiMetrics::ApiMetrics(MetricsRegistry* registry, const std::vector<ModelInfo>& models)
    : registry_(registry) {
  for (const ModelInfo& model : models) {
    models_.emplace(model.name, ModelMetrics(registry, model.name));
  }
  http_ = {
      .connections = registry->AddGauge("ems_pdc_http_connections", "Open connections"),
      .refused = registry->AddCounter("ems_pdc_http_connections_refused_total",
                                      "Connections over the limit, or without a descriptor"),
      .bad_requests = registry->AddCounter("ems_pdc_http_bad_requests_total",
                                           "Requests that are not HTTP or exceed the limits"),
      .timeouts = registry->AddCounter("ems_pdc_http_timeouts_total",
                                       "Requests and readers that were too slow"),
      .gone = registry->AddCounter("ems_pdc_http_clients_gone_total",
                                   "Clients that left before their answer had ended"),
  };
}

void ApiMetrics::OnAnswer(const std::string& path, int status) const {
  registry_
      ->AddCounter("ems_pdc_http_requests_total", "Answers by path and status",
                   {{"path", path}, {"code", std::to_string(status)}})
      .Add();
}

}  // namespace ems::pdc::api
