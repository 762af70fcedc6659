#include "integrations/c/internal/kv_call.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "integrations/c/internal/batch_call.h"
#include "integrations/c/internal/run_call.h"

namespace ems::capi {

Result<std::unique_ptr<KvCall>> KvCall::Make(std::shared_ptr<KvCore> core, KvKind kind,
                                             const KvArguments& arguments) {
  std::unique_ptr<KvCall> call(new KvCall(std::move(core), kind, arguments));
  EMS_RETURN_IF_ERROR(Told(call->Check(arguments), {arguments.codes, arguments.blocks.count}));
  return call;
}

Status KvCall::Check(const KvArguments& arguments) {
  const ems_kv_blocks& given = arguments.blocks;
  EMS_RETURN_IF_ERROR(NotNull(given.keys, "keys"));
  EMS_RETURN_IF_ERROR(InRange(count_, 1, EMS_BATCH_MAX, "count"));
  EMS_RETURN_IF_ERROR(NotNull(given.groups, "groups"));
  const size_t groups = core_->paged.layout().groups();
  EMS_RETURN_IF_ERROR(InRange(given.group_count, groups, groups, "group_count"));
  EMS_RETURN_IF_ERROR(InRange(arguments.phase, 0, EMS_PHASE_FINAL, "phase"));
  EMS_ASSIGN_OR_RETURN(const CallChoice choice, ToCallChoice(arguments.options));
  options_.timeout = choice.timeout();
  options_.touch = choice.get.touch;
  phase_ = static_cast<context::SavePhase>(arguments.phase);
  const size_t key_size = core_->context->key_size;
  const char* key = static_cast<const char*>(given.keys);
  blocks_.resize(count_);
  for (context::PagedBlock& block : blocks_) {
    block.key.assign(key, key_size);
    key += key_size;
  }
  for (size_t i = 0; i < groups; ++i) {
    const Status good = AddGroup(given.groups[i]);
    if (!good.ok()) return groups == 1 ? good : Prefixed(good, fmt::format("group {}", i));
  }
  return context::CheckBlocks(
      core_->paged.layout(), blocks_,
      kind_ == KvKind::kLoad ? context::SlotUse::kWrite : context::SlotUse::kRead);
}

Status KvCall::AddGroup(const ems_kv_slots& group) {
  const size_t block_tokens = core_->context->hasher.block_tokens();
  uint64_t all = count_ * block_tokens;
  if (group.tokens != nullptr) {
    all = std::accumulate(group.tokens, group.tokens + count_, uint64_t{0});
  }
  if (all > 0) EMS_RETURN_IF_ERROR(NotNull(group.slots, "slots"));
  EMS_RETURN_IF_ERROR(InRange(group.slot_count, all, all, "slot_count"));
  const int64_t* slots = group.slots;
  for (size_t i = 0; i < count_; ++i) {
    const size_t tokens = group.tokens == nullptr ? block_tokens : group.tokens[i];
    blocks_[i].runs.push_back(context::RunsOf({slots, tokens}));
    slots += tokens;
  }
  return OkStatus();
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
  if (kind_ == KvKind::kLoad) return TellLoad(core_->paged.Load(blocks_, options_), codes_);
  const context::SaveResult result = core_->paged.Save(blocks_, phase_, options_);
  saved_ = {.stored = result.stored_blocks,
            .existing = result.existing_blocks,
            .skipped = result.skipped_blocks};
  return TellAll(result.blocks, count_, codes_);
}

context::LayerLoad KvCall::BeginLayers() && {
  return core_->paged.LoadLayers(std::move(blocks_), options_);
}

void KvCall::Refuse(ems_status code) noexcept {
  if (codes_ != nullptr) std::fill_n(codes_, count_, code);
}

Outcome TellLoad(const context::LoadResult& result, ems_status* codes) {
  Outcome outcome = TellAll(result.blocks, result.blocks.size(), codes);
  outcome.value = result.leading_blocks;
  return outcome;
}

static_assert(static_cast<int>(context::SavePhase::kPrefill) == EMS_PHASE_PREFILL &&
              static_cast<int>(context::SavePhase::kDecode) == EMS_PHASE_DECODE &&
              static_cast<int>(context::SavePhase::kFinal) == EMS_PHASE_FINAL);

}  // namespace ems::capi
