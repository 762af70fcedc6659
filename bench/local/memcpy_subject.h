#pragma once
// The limit: values lie in this process's memory, and a copy moves them: the C library's memcpy, or
// the one that EMS moves values with. Which is faster depends on the machine; the faster is the
// limit of any copy. Bound: one working set each.
#include "bench/sides/subject.h"

namespace ems::bench {

enum class CopyWay {
  kMemcpy,     // of the C library
  kCopyValue,  // common/copy.h, without a checksum
};

class MemcpySubject final : public Subject {
 public:
  // "memcpy", "EMS's copy".
  static std::string NameOf(CopyWay way);
  // `arena`: room for all of `values`; both must outlive this.
  MemcpySubject(CopyWay way, const ValueSet* values, MutableBytes arena);
  const std::string& name() const override { return name_; }
  std::vector<SideOp> ops() const override { return {SideOp::kGet, SideOp::kPutOrdinary}; }
  SideOp load_op() const override { return SideOp::kPutOrdinary; }
  Status Call(SideOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
              uint64_t count) override;

 private:
  const CopyWay way_;
  const std::string name_;
  const MutableBytes arena_;
};

}  // namespace ems::bench
