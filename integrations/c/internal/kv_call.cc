#include "integrations/c/internal/kv_call.h"

#include <algorithm>

#include "integrations/c/internal/batch_call.h"
#include "integrations/c/internal/last_error.h"

namespace ems::capi {

Result<context::KvLayout> ToKvLayout(const ems_kv_tensor* tensors, size_t count) {
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

Result<std::unique_ptr<KvCall>> KvCall::Make(std::shared_ptr<KvCore> core, KvKind kind,
                                             const KvArguments& arguments) {
  std::unique_ptr<KvCall> call(new KvCall(std::move(core), kind, arguments));
  if (Status good = call->Check(arguments); !good.ok()) {
    if (arguments.count <= EMS_BATCH_MAX) call->Refuse(CodeOf(good));
    return good;
  }
  return call;
}

Status KvCall::Check(const KvArguments& arguments) {
  EMS_RETURN_IF_ERROR(NotNull(arguments.keys, "keys"));
  EMS_RETURN_IF_ERROR(InRange(count_, 1, EMS_BATCH_MAX, "count"));
  EMS_RETURN_IF_ERROR(NotNull(arguments.slots, "slots"));
  const ContextCore& context = *core_->context;
  const size_t block_tokens = context.hasher.block_tokens();
  const size_t slots = count_ * block_tokens;
  EMS_RETURN_IF_ERROR(InRange(arguments.slot_count, slots, slots, "slot_count"));
  EMS_ASSIGN_OR_RETURN(const CallChoice choice, ToCallChoice(arguments.options));
  options_.timeout = choice.timeout();
  options_.touch = choice.get.touch;
  blocks_.reserve(count_);
  const char* key = static_cast<const char*>(arguments.keys);
  for (size_t i = 0; i < count_; ++i, key += context.key_size) {
    blocks_.push_back(
        {.key = std::string(key, context.key_size),
         .runs = {context::RunsOf({arguments.slots + i * block_tokens, block_tokens})}});
  }
  return context::CheckBlocks(
      core_->paged.layout(), blocks_,
      kind_ == KvKind::kLoad ? context::SlotUse::kWrite : context::SlotUse::kRead);
}

Duration KvCall::timeout() const {
  uint64_t bytes = 0;
  for (const context::PagedBlock& block : blocks_) {
    bytes += context::ObjectBytes(core_->paged.layout(), block);
  }
  return core_->context->cache.TimeoutOf(bytes, options_);
}

Outcome KvCall::Run(Duration timeout) {
  options_.timeout = timeout;
  Tally tally;
  size_t at = 0;
  const auto tell = [&](const Status& status) {
    const ems_status code = tally.Add(status);
    if (codes_ != nullptr) codes_[at] = code;
    ++at;
  };
  if (kind_ == KvKind::kSave) {
    const context::SaveResult saved =
        core_->paged.Save(blocks_, context::SavePhase::kPrefill, options_);
    for (const Status& block : saved.blocks) tell(block);
    stored_blocks_ = saved.stored_blocks;
    return tally.Finish();
  }
  const context::LoadResult loaded = core_->paged.Load(blocks_, options_);
  for (const Result<uint64_t>& block : loaded.blocks) tell(block.status());
  Outcome outcome = tally.Finish();
  outcome.value = loaded.leading_blocks;
  return outcome;
}

void KvCall::Refuse(ems_status code) noexcept {
  if (codes_ != nullptr) std::fill_n(codes_, count_, code);
}

}  // namespace ems::capi
