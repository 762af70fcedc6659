#pragma once
// Numbers that name something once and for all: boots, stores, lineages.
#include <cstdint>
#include <random>

namespace ems {

// From the machine's entropy; neither it nor its lower half is 0, which means "none". Cost: a read
// of its source.
inline uint64_t RandomId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace ems
