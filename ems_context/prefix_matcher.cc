#include "ems_context/prefix_matcher.h"

namespace ems::context {

size_t LeadingBlocks(const std::vector<Result<bool>>& present) {
  size_t leading = 0;
  while (leading < present.size() && present[leading].ok() && *present[leading]) ++leading;
  return leading;
}

}  // namespace ems::context
