#pragma once
// Puts and Gets from several threads whose values verify themselves: the load under which faults
// are injected.
//
// Each key has one thread that writes it, and all threads read it. Each Put writes a fresh value
// (overwrite on). Each Get must return one whole value of that key: the one that was acknowledged
// last when the Get began, or that of a Put which began later or whose outcome is not known; or
// none. Bound: `threads` calls at once; `keys` keys; every call has `timeout`.
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_sdk/client.h"
#include "tests/support/key_history.h"

namespace ems::testing {

struct LoadCounts {
  uint64_t puts = 0, gets = 0;  // calls that have ended
  uint64_t put_ok = 0, hits = 0, misses = 0;
  uint64_t wrong_bytes = 0;  // Gets that were OK and did not return a whole value of the key
  uint64_t stale = 0;        // hits with a value older than one acknowledged before the Get began
  std::string first_stale;   // what happened there
  std::map<StatusCode, uint64_t> errors;
  Duration slowest{0};  // of all calls
  // No Get has returned what it must not.
  bool right() const { return wrong_bytes == 0 && stale == 0; }
  // Of the Gets; a load that only misses proves nothing.
  double hit_share() const {
    return gets == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(gets);
  }
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
    // Whose Gets they are; null: the writing client's. With another view it sees other servers.
    Client* reader = nullptr;
  };
  // `client` and the reader must outlive this. There are as many keys as threads, or more.
  VerifiedLoad(Client* client, const Options& options);
  ~VerifiedLoad() { Stop(); }

  // What has happened since the start, or since the last call of Take.
  LoadCounts Take();
  // Lets the load run until `calls` more calls have ended; false when `timeout` passed first.
  bool WaitForCalls(uint64_t calls, Duration timeout);
  // Ends the threads. Counts stay.
  void Stop();

 private:
  void Run(uint64_t thread, uint64_t seed);
  void PutOne(uint64_t thread, uint64_t random);
  void GetOne(uint64_t random);
  void Account(bool is_put, Duration took, const Status& status);
  void Judge(const std::string& key, std::string_view value, uint64_t oldest);

  Client* const client_;
  const Options options_;
  const std::string name_space_;
  std::vector<Guarded<KeyHistory>> histories_;  // by the key's number
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> next_put_id_{1};
  StopFlag stop_;
  Guarded<LoadCounts> counts_;
  std::vector<Thread> threads_;
};

}  // namespace ems::testing
