#pragma once
// The registration of an engine's paged KV: its tensors, their groups, and the options.
#include <span>

#include "common/status.h"
#include "ems_context/kv_layout.h"
#include "ems_context/paged_cache.h"
#include "integrations/c/ems.h"

namespace ems::capi {

ems_kv_options DefaultKvOptions();

// The options of a registration; layer_groups is borrowed, empty: one group.
struct KvChoice {
  context::PagedOptions paged;
  std::span<const uint32_t> layer_groups;
};
// Errors: kInvalidArgument  names the field
Result<KvChoice> ToKvChoice(const ems_kv_options* given);

// Errors: kInvalidArgument  names the tensor, or says how many layers there are for layer_groups
Result<context::KvLayout> ToKvLayout(const ems_kv_tensor* tensors, size_t count,
                                     std::span<const uint32_t> layer_groups = {});

}  // namespace ems::capi
