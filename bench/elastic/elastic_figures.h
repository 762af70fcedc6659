#pragma once
// What an elastic run says: sums over the requests of a window, what an LRU that loses the same
// blocks would have hit, and how many bytes a change has to move. Pure: the same on any machine.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "bench/trace/trace.h"
#include "bench/trace/trace_replay.h"
#include "cluster/dht_view.h"

namespace ems::bench {

// Requests [begin, end) of the replay.
struct Window {
  size_t begin = 0, end = 0;
};

struct WindowSums {
  uint64_t blocks = 0, arrived_blocks = 0;
  uint64_t wrong_bytes = 0, failed_gets = 0, failed_saves = 0;
  LatencyRecorder gets;  // loads
  double HitPercent() const;
};
WindowSums SumOf(std::span<const RequestOutcome> requests, Window window);

// Hit rate of the requests of each second, at so many a second; not a number where none was done.
std::vector<double> HitPercentBySecond(std::span<const RequestOutcome> requests, uint64_t rate);

// Requests [begin, end) of `trace`, `rate` a second; 0: all at once.
Trace TracePart(const Trace& trace, size_t begin, size_t end, uint64_t rate);

// Blocks that are lost in front of a request.
struct Loss {
  size_t at_request = 0;
  std::function<bool(uint64_t block)> lost;
};
// Leading blocks of each request that one LRU hits that loses them. `losses`: in their order.
std::vector<uint32_t> IdealHits(const Trace& trace, uint64_t capacity_bytes, uint64_t block_bytes,
                                std::span<const Loss> losses);
double HitPercentOf(const Trace& trace, std::span<const uint32_t> hits, Window window);

// The bytes that change their server between two views: of what an owner holds, the share of its
// slots that others have afterwards. An owner that is gone has nothing to move.
// `held`: by node name, in the first view.
double BytesToMove(const DhtView& before, const DhtView& after,
                   const std::map<std::string, uint64_t>& held);

}  // namespace ems::bench
