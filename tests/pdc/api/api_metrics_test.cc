// What must hold: one request's life shows in the metrics that dashboards ask for.
#include "pdc/api/api_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::pdc::api {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;

TEST(ApiMetricsTest, ARequestFromItsQueueToItsEnd) {
  MetricsRegistry registry;
  const ApiMetrics metrics(&registry, {{.name = "m"}, {.name = "other"}});
  const ModelMetrics& model = metrics.model("m");
  GenerationTimes times{.arrived = TimePoint(microseconds(1'000'000))};
  const TokenUsage usage{.prompt = {.prompt_tokens = 100, .cached_tokens = 60},
                         .completion_tokens = 5};
  model.OnQueued();
  EXPECT_THAT(registry.Render(), HasSubstr("ems_pdc_num_requests_waiting{model_name=\"m\"} 1\n"));
  times.prompt = times.arrived + microseconds(15'625);
  model.OnRunning(times, usage.prompt);
  EXPECT_THAT(registry.Render(), HasSubstr("ems_pdc_num_requests_running{model_name=\"m\"} 1\n"));
  times.last = times.arrived + microseconds(62'500);
  model.OnTokens(times, times.last, 1);
  times.first = times.last;
  // A step of four tokens 125 ms later: 31.25 ms a token. Doubles hold all of these exactly.
  model.OnTokens(times, times.last + microseconds(125'000), 4);
  times.last += microseconds(125'000);
  model.OnEnded(times, times.last, usage, Ending::kLength);
  model.OnReleased(true);
  const std::string text = registry.Render();
  for (const std::string line : {
           "ems_pdc_num_requests_waiting{model_name=\"m\"} 0\n",
           "ems_pdc_num_requests_running{model_name=\"m\"} 0\n",
           "ems_pdc_prompt_tokens_total{model_name=\"m\"} 100\n",
           "ems_pdc_generation_tokens_total{model_name=\"m\"} 5\n",
           "ems_pdc_prefix_cache_queries_total{model_name=\"m\"} 100\n",
           "ems_pdc_prefix_cache_hits_total{model_name=\"m\"} 60\n",
           "ems_pdc_request_success_total{finished_reason=\"length\",model_name=\"m\"} 1\n",
           "ems_pdc_request_success_total{finished_reason=\"stop\",model_name=\"m\"} 0\n",
           "ems_pdc_time_to_first_token_seconds_sum{model_name=\"m\"} 0.0625\n",
           "ems_pdc_request_queue_time_seconds_sum{model_name=\"m\"} 0.015625\n",
           "ems_pdc_request_prefill_time_seconds_sum{model_name=\"m\"} 0.046875\n",
           "ems_pdc_inter_token_latency_seconds_sum{model_name=\"m\"} 0.125\n",
           "ems_pdc_inter_token_latency_seconds_count{model_name=\"m\"} 1\n",
           "ems_pdc_request_time_per_output_token_seconds_sum{model_name=\"m\"} 0.03125\n",
           "ems_pdc_request_decode_time_seconds_sum{model_name=\"m\"} 0.125\n",
           "ems_pdc_e2e_request_latency_seconds_sum{model_name=\"m\"} 0.1875\n",
           "ems_pdc_request_prompt_tokens_sum{model_name=\"m\"} 100\n",
           "ems_pdc_request_generation_tokens_sum{model_name=\"m\"} 5\n",
           "ems_pdc_prompt_tokens_total{model_name=\"other\"} 0\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(ApiMetricsTest, WhatWasGivenUpHasNoLatency) {
  MetricsRegistry registry;
  const ApiMetrics metrics(&registry, {{.name = "m"}});
  metrics.model("m").OnQueued();
  metrics.model("m").OnEnded({}, TimePoint(), {}, Ending::kAbort);
  metrics.model("m").OnReleased(false);
  metrics.OnAnswer("/v1/completions", 429);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("success_total{finished_reason=\"abort\",model_name=\"m\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ems_pdc_e2e_request_latency_seconds_count{model_name=\"m\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ems_pdc_num_requests_waiting{model_name=\"m\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("requests_total{code=\"429\",path=\"/v1/completions\"} 1\n"));
}

}  // namespace
}  // namespace ems::pdc::api
