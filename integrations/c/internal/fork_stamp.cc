#include "integrations/c/internal/fork_stamp.h"

#include <pthread.h>

#include <atomic>

namespace ems::capi {
namespace {

// Written in a child alone, which has one thread then.
std::atomic<uint64_t> forks{0};

// When the library is loaded. Without memory for it a child looks like its parent.
const int registered =
    ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t ForkCount() {
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace ems::capi
