#pragma once
// The limit: values lie in this process's memory, and memcpy moves them. Bound: one working set.
#include "bench/contender.h"

namespace ems::bench {

class MemcpyContender final : public Contender {
 public:
  // `arena`: room for all of `values`; both must outlive this.
  MemcpyContender(const ValueSet* values, MutableBytes arena);
  const std::string& name() const override { return name_; }
  std::vector<LocalOp> ops() const override { return {LocalOp::kGet, LocalOp::kPutOrdinary}; }
  LocalOp load_op() const override { return LocalOp::kPutOrdinary; }
  Status Call(LocalOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
              uint64_t count) override;

 private:
  const std::string name_ = "memcpy";
  const MutableBytes arena_;
};

}  // namespace ems::bench
