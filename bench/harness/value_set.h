#pragma once
// The values of one size that every side of a comparison holds: their keys, their bytes, and the
// order in which all walk them.
//
// Invariant: a walk meets each object once before it meets any twice, and neighbours in the walk
// are far apart, so that neither caches nor prefetchers know the next one. Bytes are a function of
// (salt, key, version, offset). Bound: a key of about 20 bytes an object.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"

namespace ems::bench {

// Threading: immutable.
class ValueSet final {
 public:
  // `count` objects of `value_bytes`, both at least 1. `salt`: what sets these bytes apart from
  // those of other runs, the namespace's name for instance.
  ValueSet(std::string_view salt, uint64_t value_bytes, uint64_t count);

  uint64_t value_bytes() const { return value_bytes_; }
  uint64_t count() const { return keys_.size(); }
  const std::string& key(uint64_t object) const { return keys_[object]; }
  // The object at place `step` of the walk, which goes round.
  uint64_t Walk(uint64_t step) const { return (step % count()) * stride_ % count(); }

  // `version`: which Put of the object it is. Cost: as FillBlock.
  void Fill(uint64_t object, uint32_t version, MutableBytes bytes) const;
  bool Matches(uint64_t object, uint32_t version, ConstBytes bytes) const;

 private:
  uint64_t ValueId(uint64_t object, uint32_t version) const;

  const uint64_t salt_;
  const uint64_t value_bytes_;
  std::vector<std::string> keys_;
  uint64_t stride_ = 1;
};

}  // namespace ems::bench
