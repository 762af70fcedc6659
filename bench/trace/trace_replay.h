#pragma once
// Replays a trace through ContextCache the way an engine would: look up, load the hits, save the
// rest. Whatever fails is a miss, counted by code, and the replay goes on.
//
// Invariant: every loaded byte is compared with what was saved (unless verify is off).
// Bound: `concurrency` requests at once; memory concurrency × blocks of the longest request × block
// bytes; each call has its deadline.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "bench/trace/ideal_lru.h"
#include "bench/trace/trace_reader.h"
#include "common/command_line.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "ems_context/context_cache.h"

namespace ems::bench {

// What a time to first token is modelled with: both figures are of one model, so what a hit saves
// and what it costs belong together. By default DeepSeek-R1 on an NPU of CloudMatrix384.
struct TtftModel {
  double prefill_tokens_per_s = 6688;    // CM Table 3, perfect EPLB
  uint64_t kv_bytes_per_token = 70'272;  // DSV3 Table 1: MLA, BF16

  Duration Compute(uint64_t tokens) const;
  // At the rate at which so many bytes were loaded in a time; zero where none were.
  Duration Load(uint64_t tokens, uint64_t loaded_bytes, Duration load_time) const;
  std::string Text() const;  // "KV of 70272 B a token …, 6688 tokens/s: DeepSeek-R1 …"
};

struct ReplaySettings {
  uint64_t block_bytes = 16 * kKiB;  // payload that stands for 512 tokens
  uint32_t concurrency = 1;          // requests at once; 1 keeps the order of the trace
  double speedup = 0;                // timestamps divided by this; 0: as fast as possible
  TtftModel ttft;
  bool verify = true;
  uint64_t mark_every_requests = 0;  // and at the last one; 0: no marks
  bool keep_requests = false;        // what became of each: ReplayResult::requests
};

// --prefill-tokens-per-s and --kv-bytes-per-token. Owner of `model`: the caller, until the
// arguments are parsed.
void AddTtftOptions(Command* command, TtftModel* model);

// What names a replayed trace's blocks, and the key of one of them.
context::BlockHasher TraceHasher(uint64_t block_bytes);
std::string TraceKey(const context::BlockHasher& hasher, uint64_t block);

// A call may end this much after its deadline: threads on a busy machine wake up late.
inline constexpr Duration kDeadlineGrace = std::chrono::milliseconds(20);

struct SlowestCall {
  const char* operation = "none";
  Duration took{0};
  Duration deadline{0};
};

// Sums over requests. Hits count at lookup, leading blocks only; arrived: those of them that Load
// then delivered.
struct ReplayTotals {
  uint64_t requests = 0, blocks = 0, tokens = 0;
  uint64_t hit_blocks = 0, hit_tokens = 0;
  uint64_t arrived_blocks = 0, arrived_tokens = 0;
  uint64_t ideal_blocks = 0, ideal_tokens = 0;
  uint64_t wrong_bytes = 0, wrong_blocks = 0;
  uint64_t loaded_bytes = 0, saved_bytes = 0;
  Duration load_time{0}, save_time{0};  // summed over requests
  uint64_t calls = 0, late_calls = 0;
  SlowestCall slowest;
  std::map<std::string, uint64_t> errors;  // "load UNAVAILABLE" → blocks; at most 3 × 17 kinds
  Duration lag_max{0};                     // behind the trace's own times; with a speed-up only
  Duration elapsed{0};
  bool interrupted = false;

  // The sums of one more request; times are not among them.
  void Add(const ReplayTotals& one);
  double HitPercent() const;
  double HitTokenPercent() const;
  double ArrivedPercent() const;
  double ArrivedTokenPercent() const;
  double IdealPercent() const;
  double IdealTokenPercent() const;
  // The larger distance of hits and of arrivals from the ideal, in points.
  double DeltaPoints() const;
};

// What became of one request. A miss is no failure.
struct RequestOutcome {
  bool done = false;
  Duration ended{0};  // since the replay began
  uint32_t blocks = 0, arrived_blocks = 0;
  uint64_t wrong_bytes = 0;
  uint64_t failed_gets = 0, failed_saves = 0;  // blocks whose look-up, load, save ended in an error
  Duration lookup{0}, load{0}, save{0};        // zero: no such call
};

struct ReplayLatencies {
  LatencyRecorder lookup, load, save;
  // Modelled: measured look-up + KV of the hits at the rate of all measured loads + missed tokens.
  LatencyRecorder ttft_cached, ttft_uncached;
};

struct ReplayResult {
  ReplayTotals totals;
  ReplayLatencies latencies;
  std::vector<RequestOutcome> requests{};  // [requests of the trace] with keep_requests
};

// Threading: one thread calls Run, once; workers "replay-N" are its own.
class TraceReplay final {
 public:
  // `ideal` sees the requests in the trace's order, whatever the concurrency. `trace`, `cache` and
  // `ideal` must outlive this.
  TraceReplay(const Trace* trace, context::ContextCache* cache, IdealLru* ideal,
              const ReplaySettings& settings);

  // `on_mark` runs on this thread with the sums at each mark_every_requests; `on_progress` with the
  // number of requests done, at most each 100 ms; `stop` is asked as often and ends the replay.
  ReplayResult Run(std::function<void(const ReplayTotals&)> on_mark,
                   std::function<void(uint64_t)> on_progress, std::function<bool()> stop);

 private:
  struct Worker;
  // Of a request, as long as the rate of all loads is not known.
  struct Answered {
    Duration lookup{0};
    uint64_t arrived_tokens = 0, missed_tokens = 0;
  };
  struct Shared {
    ReplayResult result;
    std::vector<Answered> answered;
    std::vector<ReplayTotals> marks;  // not yet shown
    uint32_t workers_left = 0;
  };

  void Work();
  bool WaitForTurn(const TraceRequest& request);
  void RunRequest(size_t index, Worker* worker);
  void LookUp(Worker* worker);
  void Load(Worker* worker);
  void Save(Worker* worker);
  void Note(const char* operation, Duration took, Duration deadline, Worker* worker);
  void Commit(size_t index, const Worker& worker);
  void ModelTtft(Shared* shared) const;

  const Trace* const trace_;
  context::ContextCache* const cache_;
  const ReplaySettings settings_;
  const context::BlockHasher hasher_;
  std::vector<uint32_t> ideal_hits_;  // by request
  std::atomic<size_t> next_{0};       // relaxed: hands out numbers, orders nothing
  TimePoint start_{};
  StopFlag stop_;
  Guarded<Shared> shared_;
  std::condition_variable changed_;
};

}  // namespace ems::bench
