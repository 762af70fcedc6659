#include "ems_context/internal/batch_plan.h"

#include "common/check.h"

namespace ems::context {

std::vector<BatchRange> PlanBatches(std::span<const uint64_t> item_bytes,
                                    const BatchLimits& limits) {
  EMS_CHECK(limits.items_max > 0, "batches of no items");
  std::vector<BatchRange> batches;
  uint64_t batch_bytes = 0;
  for (size_t i = 0; i < item_bytes.size(); ++i) {
    const bool fits = !batches.empty() && batches.back().size() < limits.items_max &&
                      item_bytes[i] <= limits.bytes_max &&
                      batch_bytes <= limits.bytes_max - item_bytes[i];
    if (!fits) {
      batches.push_back({i, i});
      batch_bytes = 0;
    }
    batches.back().end = i + 1;
    batch_bytes += item_bytes[i];
  }
  EMS_CHECK(item_bytes.empty() || batches.back().end == item_bytes.size(), "items are left over");
  return batches;
}

}  // namespace ems::context
