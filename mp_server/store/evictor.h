#pragma once
// The thread that keeps memory a little below full and quotas kept, so that requests seldom have
// to.
//
// Bound: one round each interval, or when poked; pokes during a round become one more round.
#include <condition_variable>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_server/store/object_store.h"

namespace ems::server {

// Threading: thread-safe.
class Evictor final {
 public:
  // Starts the thread "ems-evict". `store` must outlive this.
  explicit Evictor(ObjectStore* store, Duration interval = std::chrono::milliseconds(10));
  ~Evictor();
  // Asks for a round now. Never blocks.
  void Poke();
  // Rounds done so far.
  uint64_t rounds();

 private:
  struct State {
    bool stopping = false;
    bool poked = false;
    uint64_t rounds = 0;
  };
  void Run();

  ObjectStore* const store_;
  const Duration interval_;
  Guarded<State> state_;
  std::condition_variable wakeup_;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::server
