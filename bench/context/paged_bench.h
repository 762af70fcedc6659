#pragma once
// Measures context caching as an engine uses it: blocks of paged KV beside memcpy, layers that are
// computed on while the next ones are loaded, look-ups and submits.
//
// The KV is that of 61 layers of MLA, 512 + 64 BF16 a token: 9.0 MB for 128 tokens (CloudMatrix384
// §4.4.2 caches blocks of so many tokens). Every byte that is loaded is compared, outside of what
// is timed.
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "bench/harness/page_buffer.h"
#include "common/status.h"
#include "ems_context/paged_cache.h"

namespace ems::bench {

struct PagedSettings {
  uint32_t layers = 61;
  uint32_t latent = 512, rope = 64;  // elements of a token
  uint32_t block_tokens = 128;
  uint64_t blocks = 64;
  uint64_t rounds = 5;
  uint64_t lookup_blocks = 1000;
  uint64_t submits = 2000;
  std::vector<pid_t> pause;  // servers that are stopped while submits are timed; empty: none
};

struct PagedResult {
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  // Medians over rounds.
  double memcpy_gbps = 0, load_gbps = 0, save_gbps = 0;
  double load_vs_memcpy = 0;  // of the same round
  double load_cpu_s_per_gb = 0;
  uint64_t load_checked = 0;  // bytes compared
  // Layer by layer: the load alone, and with as much computing.
  double layers_load_ms = 0, layers_both_ms = 0;
  double layers_ratio = 0;  // both / the larger of load and computing
  LatencyRecorder lookup, submit, submit_paused;
  uint64_t lookup_blocks = 0;
};

// Threading: one thread.
class PagedBench final {
 public:
  // Errors: kResourceExhausted  memory
  static Result<std::unique_ptr<PagedBench>> Make(const PagedSettings& settings,
                                                  context::BlockStore* store);
  // Errors: kDataLoss  wrong bytes    kNotFound  a block that was saved is missing    kCancelled
  Result<PagedResult> Run();

 private:
  PagedBench(const PagedSettings& settings, context::BlockStore* store)
      : settings_(settings), store_(store) {}
  Status MakeTensors();
  std::vector<context::PagedBlock> Blocks() const;
  Status CheckAll(PagedResult* result);
  Status RunLoads(PagedResult* result);
  Status RunLayers(PagedResult* result);
  Status RunLookups(PagedResult* result);
  // `answered`: each call has to bring its block; else the servers are stopped.
  Status RunSubmits(uint64_t submits, bool answered, LatencyRecorder* into);

  const PagedSettings settings_;
  context::BlockStore* const store_;
  PageBuffer tensors_, source_;  // [layers][latent, rope][blocks]; of memcpy
  std::unique_ptr<context::ContextCache> cache_;
  std::unique_ptr<context::PagedCache> paged_;
  std::string salt_;  // of this run's keys
};

}  // namespace ems::bench
