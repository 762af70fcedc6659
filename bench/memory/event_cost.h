#pragma once
// Measures the time that publishing KV events adds to a Put. Two namespaces of one store in this
// process, one of them published over a real socket, take Puts in turns, without values, so that
// nothing else is measured. Evictions of a full pool are events, too.
#include <cstdint>
#include <vector>

#include "bench/memory/memory_bench.h"
#include "common/status.h"

namespace ems::bench {

struct EventCost {
  double on_us = 0;  // a Put, the median of the rounds
  double off_us = 0;
  double ratio = 0;  // the median of the rounds' own, which lie side by side
  uint64_t rounds = 0;
  uint64_t events = 0;
  uint64_t lost = 0;
  uint64_t refused = 0;  // Puts that found no room: not many
};

// `settings.insertions` Puts of `value_bytes` in each namespace.
// Errors: kResourceExhausted  the machine has no memory for the pool    kUnavailable  no port
Result<EventCost> MeasureEventCost(const MemorySettings& settings, uint64_t value_bytes);

}  // namespace ems::bench
