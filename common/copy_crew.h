#pragma once
// Threads that help whoever copies a large value: it is cut into shares, which the caller and the
// helpers that are idle take one after the other.
//
// The caller takes part itself, and waits only for shares that others have begun: with no helper
// free the work is done all the same. Values are helped in the order in which they come, so that
// the first one is done first. Bound: kJobsMax callers are helped at a time; others work alone.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems {

// Threading: thread-safe.
class CopyCrew final {
 public:
  // Below it, waking a thread costs more than it brings.
  static constexpr uint64_t kValueBytesMin = 4 * kMiB;
  static constexpr uint64_t kShareBytes = kMiB;
  static constexpr size_t kJobsMax = 64;
  // A quarter of the machine's cores, 4 at most: the others are the engine's, and the callers'.
  static size_t UsualHelpers();

  // Threads are called "<name>-0", …; with 0 of them each caller works alone.
  CopyCrew(const std::string& name, size_t helpers);
  // Nobody may be in Run.
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  size_t helpers() const { return helpers_.size(); }
  // Whether a value of so many bytes is worth cutting.
  bool Wants(uint64_t bytes) const { return !helpers_.empty() && bytes >= kValueBytesMin; }
  // Calls share(i) once for each i below `count`, on this thread and on helpers; returns when all
  // have returned. `share` must not throw. Cost: no allocation.
  template <typename Share>
  void Run(size_t count, Share&& share) {
    using Held = std::remove_reference_t<Share>;
    Job job(
        count, [](void* held, size_t i) { (*static_cast<Held*>(held))(i); },
        const_cast<void*>(static_cast<const void*>(&share)));
    Run(&job);
  }

 private:
  struct Job {
    Job(size_t shares, void (*of)(void*, size_t), void* held)
        : count(shares), call(of), context(held) {}
    void Work() {
      for (size_t i = 0; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;)
        call(context, i);
    }
    bool IsTaken() const { return next.load(std::memory_order_relaxed) >= count; }
    const size_t count;
    void (*const call)(void*, size_t);
    void* const context;
    std::atomic<size_t> next{0};  // relaxed: the lock of State orders what shares write
    size_t helpers = 0;           // at work on it; under the lock of State
  };
  struct State {
    std::vector<Job*> jobs;  // the oldest first; of callers that are in Run
    bool stopping = false;
  };
  void Run(Job* job);
  void Help();
  // Waits for the first job of which not all shares are taken; nullptr: the end.
  Job* TakeJob();
  // Whether no job is left that could be helped.
  bool Leave(Job* job);
  // Waits a moment for another job, whose shares would be over by the time a thread is woken.
  void AwaitNext(uint64_t seen) const;

  Guarded<State> state_;
  std::atomic<uint64_t> given_{0};  // jobs so far (relaxed: a hint to look)
  std::condition_variable work_;    // for helpers
  std::condition_variable left_;    // for callers: a helper has left a job
  std::vector<Thread> helpers_;     // last
};

}  // namespace ems
