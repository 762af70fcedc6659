#pragma once
// One of a bounded number of calls, kept until the call and its task are both over.
#include <atomic>
#include <memory>
#include <utility>

#include "common/check.h"

namespace ems::pdc::rpc {

// Shared: tasks may outlive their service by a moment.
using PermitsTaken = std::shared_ptr<std::atomic<size_t>>;

class CallPermit final {
 public:
  // Null when all are taken.
  static std::unique_ptr<CallPermit> Take(const PermitsTaken& taken, size_t max) {
    // Relaxed: a number alone.
    if (taken->fetch_add(1, std::memory_order_relaxed) < max)
      return std::make_unique<CallPermit>(taken);
    taken->fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  explicit CallPermit(PermitsTaken taken) : taken_(std::move(taken)) {}
  ~CallPermit() {
    const size_t before = taken_->fetch_sub(1, std::memory_order_relaxed);
    EMS_CHECK(before > 0, "a permit was given back twice");
  }
  CallPermit(const CallPermit&) = delete;
  CallPermit& operator=(const CallPermit&) = delete;

 private:
  const PermitsTaken taken_;
};

}  // namespace ems::pdc::rpc
