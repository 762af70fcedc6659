#include "pdc/kv/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "ems_context/block_hash.h"

namespace ems::pdc {

Result<std::unique_ptr<PrefixCache>> PrefixCache::Create(context::BlockStore* store, KvArena* arena,
                                                         const Model& model,
                                                         const PrefixCacheOptions& options) {
  EMS_ASSIGN_OR_RETURN(context::KvLayout layout, arena->Layout());
  std::unique_ptr<PrefixCache> cache(new PrefixCache(store, arena, options, std::move(layout),
                                                     model.Fingerprint(arena->options().storage)));
  EMS_RETURN_IF_ERROR(cache->Keys({}, "").status());  // the size of blocks
  return cache;
}

PrefixCache::PrefixCache(context::BlockStore* store, KvArena* arena,
                         const PrefixCacheOptions& options, context::KvLayout layout,
                         std::string fingerprint)
    : store_(store),
      arena_(arena),
      options_(options),
      fingerprint_(std::move(fingerprint)),
      cache_(store, {.block_tokens = arena->block_tokens(), .timeout = options.timeout}),
      paged_(&cache_, store, std::move(layout), {.policy = options.policy}) {}

PrefixCache::~PrefixCache() {
  auto saves = saves_.Lock();
  saves.Wait(none_, [](const Saves& s) { return s.running == 0; });
}

Result<std::vector<std::string>> PrefixCache::Keys(std::span<const TokenId> tokens,
                                                   std::string_view salt) const {
  context::KeyDomain domain;
  domain.model = fingerprint_;
  domain.dtype = NameOf(arena_->options().storage);
  domain.cache_salt = salt;
  EMS_ASSIGN_OR_RETURN(
      const context::BlockHasher hasher,
      context::BlockHasher::Make(paged_.DomainFor(std::move(domain)), context::HashKind::kSha256,
                                 arena_->block_tokens()));
  const std::vector<int32_t> ids(tokens.begin(), tokens.end());
  return hasher.HashTokens(ids);
}

Result<PrefixHit> PrefixCache::Load(std::span<const TokenId> prompt, std::string_view salt,
                                    KvSequence* kv, const context::CallOptions& options) {
  const TimePoint begin = Clock::System().Now();
  if (prompt.empty()) return Error(StatusCode::kInvalidArgument, "an empty prompt");
  EMS_ASSIGN_OR_RETURN(std::vector<std::string> keys, Keys(prompt.first(prompt.size() - 1), salt));
  EMS_RETURN_IF_ERROR(kv->Reserve(static_cast<uint32_t>(prompt.size())));
  PrefixHit hit{.prompt_blocks = static_cast<uint32_t>(keys.size())};
  context::CallOptions call = options;
  if (call.timeout == Duration(0)) call.timeout = options_.timeout;
  if (!keys.empty()) {
    const size_t found = cache_.Lookup(keys, call).leading_blocks;
    EMS_CHECK(found <= keys.size(), "{} blocks of {} were found", found, keys.size());
    call.timeout -= std::min(call.timeout, Clock::System().Now() - begin);
    std::vector<context::PagedBlock> blocks;
    const uint32_t page = arena_->block_tokens();
    for (size_t i = 0; i < found; ++i) {
      EMS_ASSIGN_OR_RETURN(auto runs, kv->Runs(static_cast<uint32_t>(i) * page, page));
      blocks.push_back({std::move(keys[i]), {std::move(runs)}});
    }
    if (!blocks.empty() && call.timeout > Duration(0)) {
      hit.cached_tokens = static_cast<uint32_t>(paged_.Load(blocks, call).leading_blocks) * page;
    }
  }
  EMS_RETURN_IF_ERROR(kv->SetTokens(hit.cached_tokens));
  return hit;
}

void PrefixCache::Save(std::span<const TokenId> tokens, std::string_view salt, const KvSequence& kv,
                       uint32_t first, context::SavePhase phase) {
  const uint32_t page = arena_->block_tokens();
  const uint32_t full = std::min(kv.tokens(), static_cast<uint32_t>(tokens.size())) / page;
  const uint32_t begin = first / page;
  if (begin >= full || !context::ShouldSave(options_.policy, phase)) return;
  auto keys = Keys(tokens.first(size_t{full} * page), salt);
  if (!keys.ok()) return;  // Load has said so
  {
    auto saves = saves_.Lock();
    if (saves->running >= options_.saves_max) {
      ++saves->stats.saves_left_out;
      return;
    }
    ++saves->running;
  }
  std::vector<context::PagedBlock> blocks;
  std::vector<BlockId> held;
  for (uint32_t i = begin; i < full; ++i) {
    held.push_back(kv.blocks()[i]);
    arena_->pool().Share(held.back());
    blocks.push_back({std::move((*keys)[i]), {{{uint64_t{held.back()} * page, page}}}});
  }
  const auto count = blocks.size();
  auto work = [this, blocks = std::move(blocks), held, phase] {
    SaveEnded(paged_.Save(blocks, phase, {.timeout = options_.timeout}), held);
  };
  if (store_->Submit(std::move(work))) return;
  context::SaveResult refused;
  refused.blocks.assign(count, Error(StatusCode::kResourceExhausted, "too many saves wait"));
  SaveEnded(refused, held);
}

void PrefixCache::SaveEnded(const context::SaveResult& result, std::span<const BlockId> held) {
  for (const BlockId block : held) arena_->pool().Release(block);
  auto saves = saves_.Lock();
  EMS_CHECK(saves->running > 0, "a save has ended twice");
  saves->stats.saved_blocks += result.stored_blocks;
  saves->stats.existing_blocks += result.existing_blocks;
  saves->stats.failed_blocks += static_cast<uint64_t>(
      std::ranges::count_if(result.blocks, [](const Status& block) { return !block.ok(); }));
  --saves->running;
  none_.notify_all();
}

bool PrefixCache::Drain(Duration timeout) {
  auto saves = saves_.Lock();
  return saves.WaitFor(none_, timeout, [](const Saves& s) { return s.running == 0; });
}

PrefixCacheStats PrefixCache::stats() {
  auto saves = saves_.Lock();
  return saves->stats;
}

}  // namespace ems::pdc
