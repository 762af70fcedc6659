#pragma once
// The figures of one serving loop, summed over its answers: those of vLLM's serving benchmark, and
// the share of the prompts' tokens that came from the cache.
//
// Bound: fixed memory, and an entry for each distinct error text, of which there are few.
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/harness/latency_recorder.h"
#include "bench/serve/serve_client.h"
#include "common/clock.h"

namespace ems::bench {

// Threading: one thread.
struct ServeFigures {
  uint64_t succeeded = 0;
  uint64_t failed = 0;
  uint64_t prompt_tokens = 0;  // of those that succeeded, as all below
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;
  Duration elapsed{0};
  LatencyRecorder ttft, tpot, itl, e2e;
  std::map<std::string, uint64_t> errors = {};  // by text

  void Add(const ServeOutcome& outcome);
  // As if all had been added here; times of loads that ran one after the other.
  void Merge(const ServeFigures& other);

  // A second of `elapsed`; 0 when no time passed.
  double requests_per_s() const { return PerSecond(succeeded); }
  double output_tokens_per_s() const { return PerSecond(output_tokens); }
  double tokens_per_s() const { return PerSecond(prompt_tokens + output_tokens); }
  // Share of the prompts' tokens whose KV came from the cache.
  double cached_share() const;

 private:
  double PerSecond(uint64_t count) const;
};

// All of it, with latencies as LatencyJson has them.
nlohmann::ordered_json FiguresJson(const ServeFigures& figures);

}  // namespace ems::bench
