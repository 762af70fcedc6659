#include "ems_context/paged_cache.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "ems_context/internal/layer_reader.h"
#include "ems_context/prefix_matcher.h"

namespace ems::context {
namespace {

Status TooManyWait() {
  return Error(StatusCode::kResourceExhausted, "too many asynchronous calls wait: slow down");
}

// Keys and pieces of memory of some blocks, as ContextCache takes them.
template <typename Bytes, typename Buffers>
class Gathered final {
 public:
  // `blocks` have passed CheckBlocks.
  Gathered(const KvLayout& layout, std::span<const PagedBlock> blocks,
           std::span<const size_t> which) {
    std::vector<MutableBytes> parts;
    std::vector<size_t> ends;
    for (const size_t i : which) {
      for (uint32_t group = 0; group < layout.groups(); ++group) {
        const Status added = layout.AppendParts(group, blocks[i].runs[group], &parts);
        EMS_CHECK(added.ok(), "slots were checked: {}", ToString(added));
      }
      ends.push_back(parts.size());
      keys_.push_back(blocks[i].key);
    }
    parts_.assign(parts.begin(), parts.end());
    size_t begin = 0;
    for (const size_t end : ends) {
      buffers_.emplace_back(std::span<const Bytes>(parts_).subspan(begin, end - begin));
      begin = end;
    }
  }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;
  const std::vector<std::string>& keys() const { return keys_; }
  const std::vector<Buffers>& buffers() const { return buffers_; }

 private:
  std::vector<std::string> keys_;
  std::vector<Bytes> parts_;
  std::vector<Buffers> buffers_;
};

std::vector<size_t> AllOf(std::span<const PagedBlock> blocks) {
  std::vector<size_t> all(blocks.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

// Options for a part of a call whose time is already running.
CallOptions Rest(const CallOptions& options, Deadline deadline) {
  CallOptions rest = options;
  rest.timeout = std::max(deadline.Remaining(), Duration(1));
  return rest;
}

// The call ends when its options or its handle say so.
template <typename Outcome>
CallOptions Stoppable(const CallOptions& options, const CallState<Outcome>& state) {
  CallOptions stoppable = options;
  stoppable.cancelled = [&state, theirs = options.cancelled] {
    return state.cancelled() || (theirs && theirs());
  };
  return stoppable;
}

template <typename Outcome>
std::function<void(const Outcome&)> Ignoring(std::function<void()> done) {
  if (!done) return {};
  return [done = std::move(done)](const Outcome&) { done(); };
}

// The outcome of a call of so many keys that failed as a whole, for `why`.
template <typename Outcome>
Outcome AllFailed(size_t keys, const Status& why) {
  Outcome outcome;
  outcome.blocks.assign(keys, typename decltype(outcome.blocks)::value_type(why));
  return outcome;
}

}  // namespace

PagedCache::PagedCache(ContextCache* cache, BlockStore* store, KvLayout layout,
                       const PagedOptions& options)
    : cache_(cache), store_(store), layout_(std::move(layout)), options_(options) {}

PagedCache::~PagedCache() { gate_.Close(); }

KeyDomain PagedCache::DomainFor(KeyDomain domain) const {
  domain.kv_layout = layout_.Fingerprint();
  domain.tp_rank = options_.shared_by_tp ? 0 : options_.tp_rank;
  domain.tp_size = options_.shared_by_tp ? 1 : options_.tp_size;
  return domain;
}

Deadline PagedCache::DeadlineOf(std::span<const PagedBlock> blocks,
                                const CallOptions& options) const {
  uint64_t bytes = 0;
  for (const PagedBlock& block : blocks) bytes += ObjectBytes(layout_, block);
  return Deadline::After(cache_->TimeoutOf(bytes, options));
}

LoadResult PagedCache::Load(std::span<const PagedBlock> blocks, const CallOptions& options) {
  return LoadUntil(blocks, options, DeadlineOf(blocks, options));
}

LoadResult PagedCache::LoadUntil(std::span<const PagedBlock> blocks, const CallOptions& options,
                                 Deadline deadline) {
  const Status valid = CheckBlocks(layout_, blocks, SlotUse::kWrite);
  if (!valid.ok()) return AllFailed<LoadResult>(blocks.size(), valid);
  const Gathered<MutableBytes, MutableBuffers> gathered(layout_, blocks, AllOf(blocks));
  return cache_->Load(gathered.keys(), gathered.buffers(), Rest(options, deadline));
}

SaveResult PagedCache::Save(std::span<const PagedBlock> blocks, SavePhase phase,
                            const CallOptions& options) {
  return SaveUntil(blocks, phase, options, DeadlineOf(blocks, options));
}

Status PagedCache::CheckRank() const {
  if (options_.tp_rank < options_.tp_size) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "tp_rank {} of tp_size {}", options_.tp_rank,
               options_.tp_size);
}

std::vector<size_t> PagedCache::Mine(std::span<const PagedBlock> blocks, SavePhase phase,
                                     std::vector<size_t>* first_of) const {
  std::unordered_map<std::string_view, size_t> first;
  std::vector<size_t> mine;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [found, fresh] = first.try_emplace(blocks[i].key, i);
    first_of->push_back(found->second);
    const bool my_share = !options_.shared_by_tp || i % options_.tp_size == options_.tp_rank;
    if (fresh && my_share && ShouldSave(options_.policy, phase)) mine.push_back(i);
  }
  return mine;
}

SaveResult PagedCache::SaveUntil(std::span<const PagedBlock> blocks, SavePhase phase,
                                 const CallOptions& options, Deadline deadline) {
  Status valid = CheckBlocks(layout_, blocks, SlotUse::kRead);
  if (valid.ok()) valid = CheckRank();
  if (!valid.ok()) return AllFailed<SaveResult>(blocks.size(), valid);
  std::vector<size_t> first_of;
  const std::vector<size_t> mine = Mine(blocks, phase, &first_of);
  SaveResult result;
  result.blocks.assign(blocks.size(), OkStatus());
  result.skipped_blocks = blocks.size() - mine.size();
  if (mine.empty()) return result;
  const Gathered<ConstBytes, ConstBuffers> gathered(layout_, blocks, mine);
  const SaveResult saved =
      cache_->Save(gathered.keys(), gathered.buffers(), Rest(options, deadline));
  result.stored_blocks = saved.stored_blocks;
  result.existing_blocks = saved.existing_blocks;
  for (size_t j = 0; j < mine.size(); ++j) result.blocks[mine[j]] = saved.blocks[j];
  // A key that comes again shares the fate of the first.
  for (size_t i = 0; i < blocks.size(); ++i) result.blocks[i] = result.blocks[first_of[i]];
  return result;
}

template <typename Outcome>
SubmittedCall<Outcome> PagedCache::Start(std::span<const PagedBlock> blocks,
                                         const CallOptions& options,
                                         std::function<void(const Outcome&)> on_over,
                                         std::function<Outcome(const CallState<Outcome>&)> work) {
  using Call = CallState<Outcome>;
  auto call = std::make_shared<Call>(
      DeadlineOf(blocks, options), &gate_,
      [keys = blocks.size()](const Status& why) { return AllFailed<Outcome>(keys, why); },
      std::move(on_over));
  const auto threads = [this](std::function<void()>&& task) {
    return store_->Submit(std::move(task));
  };
  Call::Submit(
      call, threads, TooManyWait(),
      [work = std::move(work)](const std::shared_ptr<Call>& mine) { mine->Finish(work(*mine)); });
  return SubmittedCall<Outcome>(std::move(call));
}

LoadCall PagedCache::LoadAsync(std::vector<PagedBlock> blocks, const CallOptions& options,
                               std::function<void()> done) {
  const std::span<const PagedBlock> all = blocks;  // stays valid: a moved vector keeps its memory
  return Start<LoadResult>(
      all, options, Ignoring<LoadResult>(std::move(done)),
      [this, blocks = std::move(blocks), options](const CallState<LoadResult>& call) {
        return LoadUntil(blocks, Stoppable(options, call), call.deadline());
      });
}

SaveCall PagedCache::SaveAsync(std::vector<PagedBlock> blocks, SavePhase phase,
                               const CallOptions& options, std::function<void()> done) {
  const std::span<const PagedBlock> all = blocks;
  return Start<SaveResult>(
      all, options, Ignoring<SaveResult>(std::move(done)),
      [this, blocks = std::move(blocks), phase, options](const CallState<SaveResult>& call) {
        return SaveUntil(blocks, phase, Stoppable(options, call), call.deadline());
      });
}

LayerLoad PagedCache::LoadLayers(std::vector<PagedBlock> blocks, const CallOptions& options,
                                 std::function<void()> done) {
  auto progress = std::make_shared<LayerProgress>(layout_.layers(), blocks.size());
  const std::span<const PagedBlock> all = blocks;
  auto call = Start<LoadResult>(
      all, options,
      [progress, done = std::move(done)](const LoadResult& result) {
        progress->Close(result);
        if (done) done();
      },
      [this, blocks = std::move(blocks), options, progress](const CallState<LoadResult>& running) {
        const Status valid = CheckBlocks(layout_, blocks, SlotUse::kWrite);
        if (!valid.ok()) return AllFailed<LoadResult>(blocks.size(), valid);
        LayerReader reader(store_, layout_, blocks, progress.get());
        LoadResult result =
            reader.Run(PlanLayerReads(layout_, blocks, options_.layer_read_bytes), options.touch,
                       CallBounds(running.deadline(), Stoppable(options, running).cancelled));
        cache_->NoteLoad(result, reader.size_mismatches());
        return result;
      });
  return LayerLoad(std::move(call), std::move(progress));
}

}  // namespace ems::context
