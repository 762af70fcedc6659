#pragma once
// Tells the process that made a handle from a child that it forked, for the price of a load.
#include <cstdint>

namespace ems::capi {

// How often this process and its parents have forked. Threading: thread-safe.
uint64_t ForkCount();

// Threading: immutable.
class ForkStamp final {
 public:
  ForkStamp() : forks_(ForkCount()) {}
  bool here() const { return ForkCount() == forks_; }

 private:
  uint64_t forks_;
};

}  // namespace ems::capi
