#pragma once
// Puts and Gets from several threads whose values verify themselves: the load under which faults
// are injected.
//
// Each Put writes a fresh value (overwrite on); each Get must return one whole value that was put
// under that key, or none. Bound: `threads` calls at once; `keys` keys; every call has `timeout`.
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_sdk/client.h"

namespace ems::testing {

struct LoadCounts {
  uint64_t puts = 0, gets = 0;  // calls that have ended
  uint64_t put_ok = 0, hits = 0, misses = 0;
  uint64_t wrong_bytes = 0;  // Gets that were OK and did not return a whole value of the key
  std::map<StatusCode, uint64_t> errors;
  Duration slowest{0};  // of all calls
  std::string ToText() const;
};

// Threading: thread-safe. Stops when it is destroyed.
class VerifiedLoad final {
 public:
  struct Options {
    int threads = 3;
    uint64_t keys = 300;
    uint64_t value_bytes_max = 256 * kKiB;  // sizes are spread from 8 bytes to this
    Duration timeout = std::chrono::seconds(1);
    uint64_t seed = 1;
  };
  // `client` must outlive this.
  VerifiedLoad(Client* client, const Options& options);
  ~VerifiedLoad() { Stop(); }

  // What has happened since the start, or since the last call of Take.
  LoadCounts Take();
  // Lets the load run until `calls` more calls have ended; false when `timeout` passed first.
  bool WaitForCalls(uint64_t calls, Duration timeout);
  // Ends the threads. Counts stay.
  void Stop();

 private:
  void Run(uint64_t thread_seed);
  void PutOne(uint64_t random);
  void GetOne(uint64_t random);
  void Account(bool is_put, Duration took, const Status& status, bool wrong);

  Client* const client_;
  const Options options_;
  const std::string name_space_;
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> next_put_id_{1};
  StopFlag stop_;
  Guarded<LoadCounts> counts_;
  std::vector<Thread> threads_;
};

}  // namespace ems::testing
