#pragma once
// Many requests to a serving loop: some at a time, or as they arrive.
//
// Bound: one thread a request under way, kConcurrencyMax at most.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bench/serve/serve_client.h"
#include "common/clock.h"

namespace ems::bench {

inline constexpr uint32_t kConcurrencyMax = 64;

struct LoadSettings {
  // Closed loop: so many are under way, the next begins when one ends. Open loop: at most so many.
  uint32_t concurrency = 1;
  // Open loop: a Poisson process of so many requests a second; 0: closed loop. A request that finds
  // no place when it is due waits for one, and that counts.
  double rate = 0;
  uint64_t seed = 1;  // of the arrivals
};

struct LoadResult {
  std::vector<ServeOutcome> outcomes;  // in the order of the requests
  Duration elapsed{0};                 // from the first one's beginning to the last one's end
};

// When `requests` of them arrive, from the start; ascending. The same for the same seed.
// `rate`: a second, above 0.
std::vector<Duration> ArrivalTimes(uint64_t requests, double rate, uint64_t seed);

// Blocks until all have ended. When `stopped` says so the rest is not sent: kCancelled.
LoadResult RunLoad(const ServeClient& client, std::span<const ServeRequest> requests,
                   const LoadSettings& settings, const std::function<bool()>& stopped);

}  // namespace ems::bench
