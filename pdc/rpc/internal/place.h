#pragma once
// A place among a bounded number of calls, kept until the call and its task are both over.
#include <atomic>
#include <memory>
#include <utility>

namespace ems::pdc::rpc {

// Shared: tasks may outlive their service by a moment.
using PlacesTaken = std::shared_ptr<std::atomic<size_t>>;

class Place final {
 public:
  // Null when all are taken.
  static std::unique_ptr<Place> Take(const PlacesTaken& taken, size_t max) {
    // Relaxed: a number alone.
    if (taken->fetch_add(1, std::memory_order_relaxed) < max) return std::make_unique<Place>(taken);
    taken->fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  explicit Place(PlacesTaken taken) : taken_(std::move(taken)) {}
  ~Place() { taken_->fetch_sub(1, std::memory_order_relaxed); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  const PlacesTaken taken_;
};

}  // namespace ems::pdc::rpc
