#include "integrations/c/internal/kv_registration.h"

#include <utility>
#include <vector>

#include "integrations/c/internal/arguments.h"

namespace ems::capi {

ems_kv_options DefaultKvOptions() {
  const context::PagedOptions paged;
  ems_kv_options options{};
  options.size = sizeof(options);
  options.save_policy = static_cast<uint32_t>(paged.policy);
  options.tp_size = paged.tp_size;
  options.layer_read_bytes = paged.layer_read_bytes;
  return options;
}

Result<KvChoice> ToKvChoice(const ems_kv_options* given) {
  EMS_ASSIGN_OR_RETURN(const ems_kv_options c,
                       ReadOptions(given, DefaultKvOptions(), "ems_kv_options"));
  if (c.layer_groups != nullptr) {
    EMS_RETURN_IF_ERROR(InRange(c.layer_count, 1, EMS_KV_TENSORS_MAX, "layer_count"));
  } else {
    EMS_RETURN_IF_ERROR(InRange(c.layer_count, 0, 0, "layer_count without layer_groups"));
  }
  EMS_RETURN_IF_ERROR(InRange(c.save_policy, 0, EMS_SAVE_FINAL_RESPONSE, "save_policy"));
  EMS_RETURN_IF_ERROR(InRange(c.shared_by_tp, 0, 1, "shared_by_tp"));
  EMS_RETURN_IF_ERROR(InRange(c.tp_size, 1, UINT32_MAX, "tp_size"));
  EMS_RETURN_IF_ERROR(InRange(c.tp_rank, 0, c.tp_size - 1, "tp_rank"));
  EMS_RETURN_IF_ERROR(InRange(c.layer_read_bytes, 1, uint64_t{1} << 40, "layer_read_bytes"));
  KvChoice choice;
  choice.paged = {.tp_rank = c.tp_rank,
                  .tp_size = c.tp_size,
                  .shared_by_tp = c.shared_by_tp == 1,
                  .policy = static_cast<context::SavePolicy>(c.save_policy),
                  .layer_read_bytes = c.layer_read_bytes};
  choice.layer_groups = {c.layer_groups, c.layer_count};
  return choice;
}

Result<context::KvLayout> ToKvLayout(const ems_kv_tensor* tensors, size_t count,
                                     std::span<const uint32_t> layer_groups) {
  EMS_RETURN_IF_ERROR(NotNull(tensors, "tensors"));
  EMS_RETURN_IF_ERROR(InRange(count, 1, EMS_KV_TENSORS_MAX, "count"));
  std::vector<context::KvLayer> layers;
  for (size_t i = 0; i < count; ++i) {
    const ems_kv_tensor& t = tensors[i];
    const auto named = [i](std::string_view field) {
      return fmt::format("tensor {}: {}", i, field);
    };
    if (t.layer > layers.size() || t.layer + 1 < layers.size()) {
      return Error(StatusCode::kInvalidArgument,
                   "tensor {}: layer {} after {} layers: 0, 1, … in their order", i, t.layer,
                   layers.size());
    }
    if (t.head_size > 0) EMS_RETURN_IF_ERROR(NotNull(t.data, named("data")));
    EMS_RETURN_IF_ERROR(InRange(t.dtype, 0, EMS_KV_UINT8, named("dtype")));
    EMS_RETURN_IF_ERROR(InRange(t.order, 0, EMS_KV_HEADS_FIRST, named("order")));
    if (t.layer == layers.size()) layers.emplace_back();
    layers.back().tensors.push_back({.data = static_cast<std::byte*>(t.data),
                                     .bytes = t.bytes,
                                     .dtype = static_cast<context::KvDtype>(t.dtype),
                                     .order = static_cast<context::KvOrder>(t.order),
                                     .blocks = t.blocks,
                                     .block_tokens = t.block_tokens,
                                     .heads = t.heads,
                                     .head_size = t.head_size,
                                     .block_stride = t.block_stride,
                                     .token_stride = t.token_stride,
                                     .head_stride = t.head_stride});
  }
  if (!layer_groups.empty()) {
    EMS_RETURN_IF_ERROR(InRange(layer_groups.size(), layers.size(), layers.size(), "layer_count"));
    for (size_t i = 0; i < layers.size(); ++i) layers[i].group = layer_groups[i];
  }
  return context::KvLayout::Make(std::move(layers));
}

static_assert(static_cast<int>(context::KvDtype::kFloat32) == EMS_KV_FLOAT32 &&
              static_cast<int>(context::KvDtype::kFloat16) == EMS_KV_FLOAT16 &&
              static_cast<int>(context::KvDtype::kBfloat16) == EMS_KV_BFLOAT16 &&
              static_cast<int>(context::KvDtype::kFloat8E4M3) == EMS_KV_FLOAT8_E4M3 &&
              static_cast<int>(context::KvDtype::kFloat8E5M2) == EMS_KV_FLOAT8_E5M2 &&
              static_cast<int>(context::KvDtype::kInt8) == EMS_KV_INT8 &&
              static_cast<int>(context::KvDtype::kUint8) == EMS_KV_UINT8);
static_assert(static_cast<int>(context::KvOrder::kTokensFirst) == EMS_KV_TOKENS_FIRST &&
              static_cast<int>(context::KvOrder::kHeadsFirst) == EMS_KV_HEADS_FIRST);

static_assert(static_cast<int>(context::SavePolicy::kPrefillOnly) == EMS_SAVE_PREFILL_ONLY &&
              static_cast<int>(context::SavePolicy::kAll) == EMS_SAVE_ALL &&
              static_cast<int>(context::SavePolicy::kFinalResponse) == EMS_SAVE_FINAL_RESPONSE);

}  // namespace ems::capi
