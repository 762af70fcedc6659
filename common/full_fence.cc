#include "common/full_fence.h"

#include <atomic>

namespace ems {

void FullFence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

}  // namespace ems
