#pragma once
// One exact LRU over objects of any sizes: what a pool of so many bytes can hit at best with this
// policy, and what the hit rate of a real pool is held against.
//
// Invariant: bytes of resident objects ≤ capacity.
#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>

namespace ems::bench {

// Threading: one thread.
class ByteLru final {
 public:
  explicit ByteLru(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // Reads the object; whether it was there.
  bool Touch(uint64_t id);
  // Stores an object that is not there. One that is larger than the capacity is never stored.
  // Cost: O(evicted), amortised O(1).
  void Insert(uint64_t id, uint64_t bytes);
  // Reads the object, and stores it when it is not there; whether it was.
  bool Reference(uint64_t id, uint64_t bytes) {
    const bool there = Touch(id);
    if (!there) Insert(id, bytes);
    return there;
  }

  // Drops each object that `gone` says yes to. Cost: O(resident).
  void EraseIf(const std::function<bool(uint64_t id)>& gone);

  uint64_t resident_bytes() const { return bytes_; }

 private:
  struct Object {
    uint64_t id = 0;
    uint64_t bytes = 0;
  };
  using Order = std::list<Object>;  // oldest first

  const uint64_t capacity_bytes_;
  uint64_t bytes_ = 0;
  Order order_;
  std::unordered_map<uint64_t, Order::iterator> places_;
};

}  // namespace ems::bench
