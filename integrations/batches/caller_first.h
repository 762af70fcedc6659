#pragma once
// A thread that is woken for a batch shall not take the core from the engine's thread that has just
// woken it: it waits for another core, or for its turn.
#include <sched.h>

namespace ems::batches {

// Of the calling thread, from now on. Cost: a system call the first time.
inline void YieldToCallers() {
  static thread_local const bool yields = [] {
    const sched_param none{};
    return ::sched_setscheduler(0, SCHED_BATCH, &none) == 0;
  }();
  (void)yields;
}

}  // namespace ems::batches
