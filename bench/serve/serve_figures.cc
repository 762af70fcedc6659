#include "bench/serve/serve_figures.h"

#include <nlohmann/json.hpp>

#include "bench/harness/figures.h"
#include "bench/harness/report.h"

namespace ems::bench {

void ServeFigures::Add(const ServeOutcome& outcome) {
  if (!outcome.status.ok()) {
    ++failed;
    ++errors[ToString(outcome.status)];
    return;
  }
  ++succeeded;
  prompt_tokens += outcome.prompt_tokens;
  cached_tokens += outcome.cached_tokens;
  output_tokens += outcome.completion_tokens;
  ttft.Record(outcome.ttft);
  e2e.Record(outcome.e2e);
  if (outcome.completion_tokens > 1) tpot.Record(outcome.tpot());
  for (const Duration gap : outcome.itl) itl.Record(gap);
}

void ServeFigures::Merge(const ServeFigures& other) {
  succeeded += other.succeeded;
  failed += other.failed;
  prompt_tokens += other.prompt_tokens;
  cached_tokens += other.cached_tokens;
  output_tokens += other.output_tokens;
  elapsed += other.elapsed;
  ttft.Merge(other.ttft);
  tpot.Merge(other.tpot);
  itl.Merge(other.itl);
  e2e.Merge(other.e2e);
  for (const auto& [text, count] : other.errors) errors[text] += count;
}

double ServeFigures::PerSecond(uint64_t count) const {
  return elapsed <= Duration::zero() ? 0 : static_cast<double>(count) / Seconds(elapsed);
}

double ServeFigures::cached_share() const { return Share(cached_tokens, prompt_tokens); }

nlohmann::ordered_json FiguresJson(const ServeFigures& figures) {
  nlohmann::ordered_json json = {{"successful_requests", figures.succeeded},
                                 {"failed_requests", figures.failed},
                                 {"duration_s", Seconds(figures.elapsed)},
                                 {"input_tokens", figures.prompt_tokens},
                                 {"cached_tokens", figures.cached_tokens},
                                 {"cached_share", figures.cached_share()},
                                 {"generated_tokens", figures.output_tokens},
                                 {"requests_per_s", figures.requests_per_s()},
                                 {"output_tokens_per_s", figures.output_tokens_per_s()},
                                 {"tokens_per_s", figures.tokens_per_s()},
                                 {"ttft", LatencyJson(figures.ttft)},
                                 {"tpot", LatencyJson(figures.tpot)},
                                 {"itl", LatencyJson(figures.itl)},
                                 {"e2e", LatencyJson(figures.e2e)}};
  for (const auto& [text, count] : figures.errors) json["errors"][text] = count;
  return json;
}

}  // namespace ems::bench
