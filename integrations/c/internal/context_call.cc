#include "integrations/c/internal/context_call.h"

#include <algorithm>

#include "integrations/c/internal/batch_call.h"
#include "integrations/c/internal/run_call.h"

namespace ems::capi {

Result<std::unique_ptr<ContextCall>> ContextCall::Make(std::shared_ptr<ContextCore> core,
                                                       ContextKind kind,
                                                       const ContextArguments& arguments) {
  std::unique_ptr<ContextCall> call(new ContextCall(std::move(core), kind, arguments));
  EMS_RETURN_IF_ERROR(Told(call->Check(arguments), {arguments.codes, arguments.count}));
  return call;
}

Status ContextCall::Check(const ContextArguments& arguments) {
  EMS_RETURN_IF_ERROR(NotNull(arguments.keys, "keys"));
  EMS_RETURN_IF_ERROR(InRange(count_, 1, EMS_BATCH_MAX, "count"));
  EMS_ASSIGN_OR_RETURN(const CallChoice choice, ToCallChoice(arguments.options));
  options_.timeout = choice.timeout();
  options_.touch = choice.get.touch;
  size_t pieces = 0;
  if (kind_ != ContextKind::kLookup) {
    EMS_RETURN_IF_ERROR(NotNull(arguments.blocks, "blocks"));
    for (size_t i = 0; i < count_; ++i) {
      const Result<uint64_t> bytes = CheckPieces(&arguments.blocks[i], "memory");
      if (!bytes.ok()) return Prefixed(bytes.status(), fmt::format("block {}", i));
      bytes_ += *bytes;
      pieces += arguments.blocks[i].count;
    }
  }
  keys_.reserve(count_);
  const char* key = static_cast<const char*>(arguments.keys);
  for (size_t i = 0; i < count_; ++i, key += core_->key_size) {
    keys_.emplace_back(key, core_->key_size);
  }
  if (kind_ == ContextKind::kLoad) {
    mutable_parts_.reserve(pieces);
    rooms_.reserve(count_);
    for (size_t i = 0; i < count_; ++i) {
      rooms_.push_back(AsBuffers<MutableBuffers>(arguments.blocks[i], &mutable_parts_));
    }
  } else if (kind_ == ContextKind::kSave) {
    const_parts_.reserve(pieces);
    values_.reserve(count_);
    for (size_t i = 0; i < count_; ++i) {
      values_.push_back(AsBuffers<ConstBuffers>(arguments.blocks[i], &const_parts_));
    }
  }
  return OkStatus();
}

Duration ContextCall::timeout() const { return core_->cache.TimeoutOf(bytes_, options_); }

Outcome ContextCall::Run(Duration timeout) {
  options_.timeout = timeout;
  Outcome outcome;
  switch (kind_) {
    case ContextKind::kLookup: {
      const context::LookupResult found = core_->cache.Lookup(keys_, options_);
      outcome = TellAll(found.present, count_, codes_);
      outcome.value = found.leading_blocks;
      break;
    }
    case ContextKind::kLoad: {
      const context::LoadResult loaded = core_->cache.Load(keys_, rooms_, options_);
      outcome = TellAll(loaded.blocks, count_, codes_);
      outcome.value = loaded.leading_blocks;
      break;
    }
    case ContextKind::kSave: {
      const context::SaveResult saved = core_->cache.Save(keys_, values_, options_);
      outcome = TellAll(saved.blocks, count_, codes_);
      stored_blocks_ = saved.stored_blocks;
      break;
    }
  }
  return outcome;
}

void ContextCall::Refuse(ems_status code) noexcept {
  if (codes_ != nullptr) std::fill_n(codes_, count_, code);
}

}  // namespace ems::capi
