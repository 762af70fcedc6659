#pragma once
// Keeps the pool as large as it should be: as an operator says, or less while the machine needs its
// memory.
//
// Bound: with elastic memory a thread looks at the machine each 50 ms; without, there is none.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_server/memory/elastic_size.h"
#include "mp_server/memory/host_memory.h"
#include "mp_server/memory/segment_pool.h"

namespace ems::server {

// Threading: thread-safe.
class PoolSize final {
 public:
  struct Options {
    SegmentPool* pool = nullptr;  // must outlive this
    uint64_t bytes = 0;           // as configured: its size, or the most of it
    bool is_elastic = false;
    ElasticOptions elastic;
    HostMemory::Roots roots;
    // After each change: who evicts has something to do. Must not block.
    std::function<void()> on_change = [] {};
    // Bytes that the pool has given back for others, each time.
    std::function<void(uint64_t bytes)> on_pressure = [](uint64_t) {};
  };
  explicit PoolSize(Options options);
  ~PoolSize();
  PoolSize(const PoolSize&) = delete;
  PoolSize& operator=(const PoolSize&) = delete;

  // What an operator has set for this server; 0: as configured. Takes effect at once; what is in
  // the way is evicted, the coldest first.
  void SetMost(uint64_t bytes);

  // Elastic memory that leaves `keep_free_bytes` at a start on this machine, now.
  static uint64_t FirstBytes(const Options& options);

 private:
  struct State {
    uint64_t most = 0;
    bool stopping = false;
  };
  void Run();
  void Look(uint64_t most);
  void Resize(uint64_t bytes, const char* why);

  const Options options_;
  HostMemory host_;    // the thread's
  ElasticSize size_;   // the thread's
  bool said_ = false;  // that the machine cannot be read
  Guarded<State> state_;
  std::condition_variable wakeup_;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::server
