#include "bench/harness/value_set.h"

#include <algorithm>
#include <numeric>

#include "bench/harness/trace_payload.h"
#include "common/check.h"
#include "common/hash.h"

namespace ems::bench {
namespace {

// A stride without a common factor meets every object; one near the golden section keeps
// neighbours apart.
uint64_t StrideFor(uint64_t count) {
  auto stride = std::max<uint64_t>(1, count * 618 / 1000);
  while (std::gcd(stride, count) != 1) ++stride;
  return stride;
}

}  // namespace

ValueSet::ValueSet(std::string_view salt, uint64_t value_bytes, uint64_t count)
    : salt_(Hash64(AsBytes(salt))), value_bytes_(value_bytes), stride_(StrideFor(count)) {
  EMS_CHECK(value_bytes > 0 && count > 0);
  keys_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) keys_.push_back(fmt::format("local/{}/{}", value_bytes, i));
}

uint64_t ValueSet::ValueId(uint64_t object, uint32_t version) const {
  return Hash64(AsBytes(keys_[object]), salt_ + version);
}

void ValueSet::Fill(uint64_t object, uint32_t version, MutableBytes bytes) const {
  FillBlock(ValueId(object, version), bytes);
}

bool ValueSet::Matches(uint64_t object, uint32_t version, ConstBytes bytes) const {
  return bytes.size() == value_bytes_ && CountWrongBytes(ValueId(object, version), bytes) == 0;
}

}  // namespace ems::bench
