#pragma once
// Traces of shapes that recorded ones do not have, by a seed: how a cache does where popularity is
// steep, and where requests go round more than fits.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/trace/trace.h"

namespace ems::bench {

enum class TraceShape {
  // Documents are asked about with a frequency that falls as rank^-kSteepness: few get most.
  kSteep,
  // Documents are asked about in turn, over and over: an LRU that does not hold all hits none.
  kCyclic,
};
inline constexpr double kSteepness = 1.2;

// "steep", "cyclic".
std::vector<std::string> TraceShapeNames();
// One of the names.
TraceShape TraceShapeOf(std::string_view name);

// `requests` of them (1 at least), a second apart, about a fifth as many documents of 1 to 32
// blocks of 512 tokens. Each request is a document and a block of its own, the question. The same
// seed gives the same trace. Cost: O(requests).
Trace MakeTrace(TraceShape shape, uint64_t requests, uint64_t seed);

}  // namespace ems::bench
