#pragma once
// Threads that share out one piece of work at a time; the caller is one of them.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::pdc::internal {

// Threading: one thread at a time. With one member there are no threads and no locks.
class Team final {
 public:
  // Threads "ems-engine-1" … beside the caller.
  explicit Team(size_t members);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  size_t members() const { return threads_.size() + 1; }
  // Calls work(part, member) for each part once, on any member, in any order; returns when all are
  // done. `work` must not fail.
  void ForEach(size_t parts, const std::function<void(size_t part, size_t member)>& work);

 private:
  struct State {
    uint64_t round = 0;
    size_t working = 0;
    bool stopping = false;
    const std::function<void(size_t, size_t)>* work = nullptr;
    size_t parts = 0;
  };
  void Run(size_t member);
  void Share(const std::function<void(size_t, size_t)>& work, size_t parts, size_t member);

  Guarded<State> state_;
  std::condition_variable begun_, ended_;
  std::atomic<size_t> next_{0};  // relaxed: the lock of state_ orders rounds
  std::vector<Thread> threads_;
};

}  // namespace ems::pdc::internal
