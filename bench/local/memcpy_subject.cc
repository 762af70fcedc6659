#include "bench/local/memcpy_subject.h"

#include <cstring>

#include "common/check.h"
#include "common/copy.h"

namespace ems::bench {

std::string MemcpySubject::NameOf(CopyWay way) {
  return way == CopyWay::kMemcpy ? "memcpy" : "EMS's copy";
}

MemcpySubject::MemcpySubject(CopyWay way, const ValueSet* values, MutableBytes arena)
    : way_(way), name_(NameOf(way)), arena_(arena) {
  EMS_CHECK(values->count() * values->value_bytes() <= arena.size());
}

Status MemcpySubject::Call(SideOp op, uint32_t /*caller*/, const Stretch& stretch, uint64_t first,
                           uint64_t count) {
  for (uint64_t i = first; i < first + count; ++i) {
    MutableBytes to = stretch.Buffer(i);
    const std::byte* from = arena_.data() + stretch.objects[i] * stretch.value_bytes;
    if (op != SideOp::kGet) {
      from = to.data();
      to = arena_.subspan(stretch.objects[i] * stretch.value_bytes, stretch.value_bytes);
    }
    if (way_ == CopyWay::kMemcpy) {
      std::memcpy(to.data(), from, to.size());
    } else {
      CopyValue(to, from, nullptr);
    }
  }
  return OkStatus();
}

}  // namespace ems::bench
