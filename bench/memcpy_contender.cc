#include "bench/memcpy_contender.h"

#include <cstring>

#include "common/check.h"

namespace ems::bench {

MemcpyContender::MemcpyContender(const ValueSet* values, MutableBytes arena) : arena_(arena) {
  EMS_CHECK(values->count() * values->value_bytes() <= arena.size());
}

Status MemcpyContender::Call(LocalOp op, uint32_t /*caller*/, const Stretch& stretch,
                             uint64_t first, uint64_t count) {
  for (uint64_t i = first; i < first + count; ++i) {
    const MutableBytes slot = stretch.Slot(i);
    std::byte* const object = arena_.data() + stretch.objects[i] * stretch.value_bytes;
    if (op == LocalOp::kGet) {
      std::memcpy(slot.data(), object, slot.size());
    } else {
      std::memcpy(object, slot.data(), slot.size());
    }
  }
  return OkStatus();
}

}  // namespace ems::bench
