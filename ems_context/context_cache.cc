#include "ems_context/context_cache.h"

#include <algorithm>
#include <memory>

#include "ems_context/internal/block_batches.h"
#include "ems_context/prefix_matcher.h"

namespace ems::context {
namespace {

constexpr uint64_t kSlowestBytesPerSecond = 100'000'000;
constexpr Duration kTimeoutMax = std::chrono::seconds(30);

LookupResult FailedLookup(size_t keys, const Status& why) {
  LookupResult result;
  result.present.assign(keys, Result<bool>(why));
  return result;
}

LoadResult FailedLoad(size_t keys, const Status& why) {
  LoadResult result;
  result.blocks.assign(keys, Result<uint64_t>(why));
  return result;
}

SaveResult FailedSave(size_t keys, const Status& why) {
  SaveResult result;
  result.blocks.assign(keys, why);
  return result;
}

Status CountsDiffer(size_t keys, size_t buffers) {
  return Error(StatusCode::kInvalidArgument, "{} keys but {} buffers: one buffer a key is needed",
               keys, buffers);
}

Status TooManyWait() {
  return Error(StatusCode::kResourceExhausted, "too many asynchronous calls wait: slow down");
}

template <typename Buffers>
uint64_t TotalBytes(std::span<const Buffers> buffers) {
  uint64_t total = 0;
  for (const Buffers& one : buffers) total += one.size_bytes();
  return total;
}

bool IsFailure(const Status& status) {
  return !status.ok() && status.code() != StatusCode::kNotFound;
}

// A block whose length is not the buffer's is not the block that the engine wants: a miss. Returns
// how many there were.
size_t MakeWrongSizesMisses(std::span<const GetItem> items, std::vector<Result<uint64_t>>* blocks) {
  size_t mismatches = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    Result<uint64_t>& block = (*blocks)[i];
    const bool mismatch = block.ok() ? *block != items[i].into.size_bytes()
                                     : block.status().code() == StatusCode::kOutOfRange;
    if (!mismatch) continue;
    block = Miss();
    ++mismatches;
  }
  return mismatches;
}

// The future of an Async call that takes a callback.
template <typename Outcome, typename Start>
std::future<Outcome> AsFuture(Start start) {
  auto promise = std::make_shared<std::promise<Outcome>>();
  std::future<Outcome> future = promise->get_future();
  start([promise](Outcome outcome) { promise->set_value(std::move(outcome)); });
  return future;
}

}  // namespace

ContextCache::ContextCache(BlockStore* store, const ContextCacheOptions& options)
    : store_(store), options_(options) {}

ContextCache::~ContextCache() { running_.Close(); }

Duration ContextCache::TimeoutOf(uint64_t bytes, const CallOptions& options) const {
  if (options.timeout > Duration::zero()) return options.timeout;
  const std::chrono::microseconds moving(bytes / (kSlowestBytesPerSecond / 1'000'000));
  return std::min<Duration>(options_.timeout + moving, kTimeoutMax);
}

LookupResult ContextCache::Lookup(std::span<const std::string> keys, const CallOptions& options) {
  LookupResult result = LookupUntil(keys, options.touch, Deadline::After(TimeoutOf(0, options)));
  CountLookup(result, keys.size() * options_.block_tokens, options_.block_tokens);
  return result;
}

LookupResult ContextCache::Lookup(const BlockHasher& hasher, std::span<const int32_t> tokens,
                                  const CallOptions& options) {
  const Deadline deadline = Deadline::After(TimeoutOf(0, options));
  std::vector<std::string> keys = hasher.HashTokens(tokens);
  LookupResult result = LookupUntil(keys, options.touch, deadline);
  result.keys = std::move(keys);
  CountLookup(result, tokens.size(), hasher.block_tokens());
  return result;
}

LookupResult ContextCache::LookupUntil(std::span<const std::string> keys, bool touch,
                                       Deadline deadline) {
  LookupResult result;
  result.present =
      ExistsInBatches(store_, keys, ExistsScope::kLeading, touch, options_.batch, deadline);
  result.leading_blocks = LeadingBlocks(result.present);
  return result;
}

LoadResult ContextCache::Load(std::span<const std::string> keys,
                              std::span<const MutableBuffers> into, const CallOptions& options) {
  return LoadUntil(
      keys, into, options.touch,
      CallBounds(Deadline::After(TimeoutOf(TotalBytes(into), options)), options.cancelled));
}

LoadResult ContextCache::LoadUntil(std::span<const std::string> keys,
                                   std::span<const MutableBuffers> into, bool touch,
                                   const CallBounds& bounds) {
  if (keys.size() != into.size())
    return FailedLoad(keys.size(), CountsDiffer(keys.size(), into.size()));
  std::vector<GetItem> items(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) items[i] = {.key = keys[i], .into = into[i]};
  LoadResult result;
  result.blocks = GetInBatches(store_, items, touch, options_.batch, bounds);
  const size_t mismatches = MakeWrongSizesMisses(items, &result.blocks);
  result.leading_blocks = LeadingOk(result.blocks);
  NoteLoad(result, mismatches);
  return result;
}

SaveResult ContextCache::Save(std::span<const std::string> keys,
                              std::span<const ConstBuffers> values, const CallOptions& options) {
  return SaveUntil(
      keys, values,
      CallBounds(Deadline::After(TimeoutOf(TotalBytes(values), options)), options.cancelled));
}

SaveResult ContextCache::SaveUntil(std::span<const std::string> keys,
                                   std::span<const ConstBuffers> values, const CallBounds& bounds) {
  if (keys.size() != values.size())
    return FailedSave(keys.size(), CountsDiffer(keys.size(), values.size()));
  const auto present =
      ExistsInBatches(store_, keys, ExistsScope::kAll, true, options_.batch, bounds);
  SaveResult result;
  ContextStats counted;
  std::vector<size_t> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    // A server that cannot say whether it has a block cannot take it either.
    result.blocks.push_back(present[i].status());
    if (!present[i].ok()) continue;
    if (*present[i]) {
      ++counted.deduped_blocks;
      counted.deduped_bytes += values[i].size_bytes();
    } else {
      missing.push_back(i);
    }
  }
  const size_t batches = PutMissing(keys, values, missing, bounds, &result, &counted);
  if (batches > 1) ExistsInBatches(store_, keys, ExistsScope::kAll, true, options_.batch, bounds);
  result.stored_blocks = counted.saved_blocks;
  result.existing_blocks = counted.deduped_blocks + counted.conflicts;
  counted.failed_blocks = keys.size() - result.stored_blocks - result.existing_blocks;
  CountSave(counted);
  return result;
}

size_t ContextCache::PutMissing(std::span<const std::string> keys,
                                std::span<const ConstBuffers> values,
                                std::span<const size_t> missing, const CallBounds& bounds,
                                SaveResult* result, ContextStats* counted) {
  std::vector<PutItem> puts;
  puts.reserve(missing.size());
  for (const size_t i : missing) puts.push_back({.key = keys[i], .value = values[i]});
  const PutOutcome outcome =
      PutInBatches(store_, puts, options_.durability, options_.batch, bounds);
  for (size_t j = 0; j < missing.size(); ++j) {
    const Status& status = outcome.items[j];
    if (status.code() == StatusCode::kAlreadyExists) {
      ++counted->conflicts;  // the block's result stays ok
      continue;
    }
    result->blocks[missing[j]] = status;
    if (!status.ok()) continue;
    ++counted->saved_blocks;
    counted->saved_bytes += puts[j].value.size_bytes();
  }
  return outcome.batches;
}

void ContextCache::CountSave(const ContextStats& counted) {
  auto stats = stats_.Lock();
  stats->saved_blocks += counted.saved_blocks;
  stats->saved_bytes += counted.saved_bytes;
  stats->deduped_blocks += counted.deduped_blocks;
  stats->deduped_bytes += counted.deduped_bytes;
  stats->conflicts += counted.conflicts;
  stats->failed_blocks += counted.failed_blocks;
}

void ContextCache::CountLookup(const LookupResult& result, uint64_t requested_tokens,
                               uint32_t block_tokens) {
  const auto failed =
      std::count_if(result.present.begin(), result.present.end(),
                    [](const Result<bool>& one) { return IsFailure(one.status()); });
  auto stats = stats_.Lock();
  ++stats->lookups;
  stats->lookup_requested_blocks += result.present.size();
  stats->lookup_requested_tokens += requested_tokens;
  stats->lookup_hit_blocks += result.leading_blocks;
  stats->lookup_hit_tokens += result.leading_blocks * block_tokens;
  stats->failed_blocks += static_cast<uint64_t>(failed);
}

void ContextCache::NoteLoad(const LoadResult& result, size_t size_mismatches) {
  ContextStats counted;
  for (const Result<uint64_t>& block : result.blocks) {
    if (block.ok()) {
      ++counted.loaded_blocks;
      counted.loaded_bytes += *block;
    } else if (IsFailure(block.status())) {
      ++counted.failed_blocks;
    }
  }
  auto stats = stats_.Lock();
  stats->loaded_blocks += counted.loaded_blocks;
  stats->loaded_bytes += counted.loaded_bytes;
  stats->failed_blocks += counted.failed_blocks;
  stats->size_mismatches += size_mismatches;
}

// The call is running from here until `done` has returned.
template <typename Outcome>
void ContextCache::Run(std::function<Outcome()> work, std::function<void(Outcome)> done,
                       Outcome refused) {
  (void)running_.Enter();
  auto task = [this, work = std::move(work), done] {
    done(work());
    running_.Leave();
  };
  if (store_->Submit(std::move(task))) return;
  done(std::move(refused));
  running_.Leave();
}

void ContextCache::LookupAsync(std::vector<std::string> keys, const CallOptions& options,
                               std::function<void(LookupResult)> done) {
  const Deadline deadline = Deadline::After(TimeoutOf(0, options));
  LookupResult refused = FailedLookup(keys.size(), TooManyWait());
  Run<LookupResult>(
      [this, keys = std::move(keys), touch = options.touch, deadline] {
        LookupResult result = LookupUntil(keys, touch, deadline);
        CountLookup(result, keys.size() * options_.block_tokens, options_.block_tokens);
        return result;
      },
      std::move(done), std::move(refused));
}

void ContextCache::LoadAsync(std::vector<std::string> keys, std::vector<MutableBuffers> into,
                             const CallOptions& options, std::function<void(LoadResult)> done) {
  const uint64_t bytes = TotalBytes(std::span<const MutableBuffers>(into));
  const Deadline deadline = Deadline::After(TimeoutOf(bytes, options));
  LoadResult refused = FailedLoad(keys.size(), TooManyWait());
  Run<LoadResult>(
      [this, keys = std::move(keys), into = std::move(into), touch = options.touch,
       bounds = CallBounds(deadline, options.cancelled)] {
        return LoadUntil(keys, into, touch, bounds);
      },
      std::move(done), std::move(refused));
}

void ContextCache::SaveAsync(std::vector<std::string> keys, std::vector<ConstBuffers> values,
                             const CallOptions& options, std::function<void(SaveResult)> done) {
  const uint64_t bytes = TotalBytes(std::span<const ConstBuffers>(values));
  const Deadline deadline = Deadline::After(TimeoutOf(bytes, options));
  SaveResult refused = FailedSave(keys.size(), TooManyWait());
  Run<SaveResult>([this, keys = std::move(keys), values = std::move(values),
                   bounds = CallBounds(
                       deadline, options.cancelled)] { return SaveUntil(keys, values, bounds); },
                  std::move(done), std::move(refused));
}

std::future<LookupResult> ContextCache::LookupAsync(std::vector<std::string> keys,
                                                    const CallOptions& options) {
  return AsFuture<LookupResult>([&](std::function<void(LookupResult)> done) {
    LookupAsync(std::move(keys), options, std::move(done));
  });
}

std::future<LoadResult> ContextCache::LoadAsync(std::vector<std::string> keys,
                                                std::vector<MutableBuffers> into,
                                                const CallOptions& options) {
  return AsFuture<LoadResult>([&](std::function<void(LoadResult)> done) {
    LoadAsync(std::move(keys), std::move(into), options, std::move(done));
  });
}

std::future<SaveResult> ContextCache::SaveAsync(std::vector<std::string> keys,
                                                std::vector<ConstBuffers> values,
                                                const CallOptions& options) {
  return AsFuture<SaveResult>([&](std::function<void(SaveResult)> done) {
    SaveAsync(std::move(keys), std::move(values), options, std::move(done));
  });
}

ContextStats ContextCache::stats() {
  auto stats = stats_.Lock();
  return *stats;
}

}  // namespace ems::context
