#pragma once
// What a client has done since it connected, and how long its calls took.
#include <cstdint>
#include <string>
#include <vector>

#include "common/latency_set.h"

namespace ems {

// How long calls of one kind took.
struct CallLatency {
  // "get" (ranges and views, too), "put", "exists" or "remove"; of several keys "multi_get", …
  std::string op;
  // "one_sided": calls that asked no server. One in kOneSidedSample of each thread's is timed.
  // "socket": calls, or what was left of them, that servers were asked for, retries included.
  std::string path;
  Latencies latencies;
  double p50_us() const { return static_cast<double>(latencies.Quantile(0.5).count()) / 1e3; }
  double p99_us() const { return static_cast<double>(latencies.Quantile(0.99).count()) / 1e3; }
};
inline constexpr uint32_t kOneSidedSample = 32;

struct ClientStats {
  uint64_t gets = 0, hits = 0, puts = 0;       // keys, also those of Multi calls
  uint64_t bytes_read = 0, bytes_written = 0;  // of values, those of views included
  uint64_t retries = 0, wrong_owner = 0, breaker_opened = 0, checksum_mismatches = 0;
  // Requests that went to holders of copies instead, as the owner could not be reached.
  uint64_t copies_asked = 0;
  // Reads of hot keys that copies answered, and those that their owner was asked for after that;
  // reads that another server was asked for, too, as the first was slow, and those that it
  // answered.
  uint64_t hot_hits = 0, hot_misses = 0, hedges = 0, hedges_won = 0;
  // Keys read, found missing, or looked at without the server's help.
  uint64_t one_sided = 0;
  // Reads of a server on this machine that took the socket after all, by reason.
  uint64_t not_attached = 0;    // the server does not share, or not yet (table, segment on its way)
  uint64_t not_current = 0;     // its index is of another view, or its lease has ended
  uint64_t not_conclusive = 0;  // changed under the reader, or a miss that proves nothing
  // Of the kinds of calls that there have been.
  std::vector<CallLatency> calls;
};

// As Prometheus text: counters ems_client_…_total, and the histogram ems_client_call_seconds.
std::string PrometheusText(const ClientStats& stats);

}  // namespace ems
