#pragma once
// Compares a value in DRAM with its checksums, a part at a time, so that a large one does not keep
// the others of its thread waiting.
#include <cstdint>

#include "common/checksum.h"
#include "mp_server/request_check.h"
#include "mp_server/store/object_pin.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: one thread.
class ValueCheck final {
 public:
  explicit ValueCheck(ObjectPin pin);
  // Looks at up to `*bytes_left` more bytes and takes them off. True: it has seen all of them.
  bool GoOn(uint64_t* bytes_left);
  // Then, once: whether value and piece sums are still what was published.
  bool Intact();
  ObjectPin& pin() { return pin_; }

 private:
  ObjectPin pin_;
  PieceHasher hasher_;
  uint64_t done_ = 0;
};

// The checksum of a range of a value, cut as that of a GetRange is, or why there is none. What is
// damaged is dropped. Cost: the pieces at both ends.
wire::WireStatus CheckRange(const ObjectPin& pin, wire::RangeBody range, Refusal* refusal,
                            uint64_t* checksum);

}  // namespace ems::server
