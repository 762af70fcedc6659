#include "ems_context/internal/block_batches.h"

#include <algorithm>

#include "common/check.h"

namespace ems::context {
namespace {

Status TimeIsOver() {
  return Error(StatusCode::kDeadlineExceeded, "the call's time was over before this block's batch");
}

template <typename Item>
std::vector<Item> TailFirst(std::span<const Item> items, BatchRange range) {
  const auto batch = items.subspan(range.begin, range.size());
  return std::vector<Item>(batch.rbegin(), batch.rend());
}

// Puts the results of a tail-first batch to the places of its items.
template <typename R>
void Place(std::vector<R> answers, BatchRange range, std::vector<R>* results) {
  EMS_CHECK(answers.size() == range.size(), "{} answers to {} items", answers.size(), range.size());
  std::move(answers.rbegin(), answers.rend(),
            results->begin() + static_cast<ptrdiff_t>(range.begin));
}

GetOptions ReadOptions(bool touch, Duration timeout) {
  GetOptions options;
  options.touch = touch;
  options.timeout = timeout;
  return options;
}

template <typename Item, typename SizeOf>
std::vector<BatchRange> Plan(std::span<const Item> items, const BatchLimits& limits,
                             SizeOf size_of) {
  std::vector<uint64_t> sizes(items.size());
  std::transform(items.begin(), items.end(), sizes.begin(), size_of);
  return PlanBatches(sizes, limits);
}

bool AllPresent(std::span<const Result<bool>> present) {
  return std::all_of(present.begin(), present.end(),
                     [](const Result<bool>& one) { return one.ok() && *one; });
}

}  // namespace

std::vector<Result<bool>> ExistsInBatches(BlockStore* store, std::span<const std::string> keys,
                                          ExistsScope scope, bool touch, const BatchLimits& limits,
                                          Deadline deadline) {
  std::vector<KeyItem> items(keys.size());
  std::transform(keys.begin(), keys.end(), items.begin(),
                 [](const std::string& key) { return KeyItem{.key = key}; });
  const std::span<const KeyItem> all(items);
  std::vector<Result<bool>> present(keys.size(), Result<bool>(TimeIsOver()));
  for (const BatchRange range : Plan(all, limits, [](const KeyItem&) { return uint64_t{0}; })) {
    const Duration left = deadline.Remaining();
    if (left == Duration::zero()) break;
    Place(store->MultiExists(TailFirst(all, range), ReadOptions(touch, left)), range, &present);
    if (scope == ExistsScope::kAll) continue;
    if (AllPresent(std::span(present).subspan(range.begin, range.size()))) continue;
    std::fill(present.begin() + static_cast<ptrdiff_t>(range.end), present.end(),
              Result<bool>(false));
    break;
  }
  return present;
}

std::vector<Result<uint64_t>> GetInBatches(BlockStore* store, std::span<const GetItem> items,
                                           bool touch, const BatchLimits& limits,
                                           Deadline deadline) {
  std::vector<Result<uint64_t>> blocks(items.size(), Result<uint64_t>(TimeIsOver()));
  for (const BatchRange range :
       Plan(items, limits, [](const GetItem& item) { return item.into.size_bytes(); })) {
    const Duration left = deadline.Remaining();
    if (left == Duration::zero()) break;
    Place(store->MultiGet(TailFirst(items, range), ReadOptions(touch, left)), range, &blocks);
  }
  return blocks;
}

PutOutcome PutInBatches(BlockStore* store, std::span<const PutItem> items, Durability durability,
                        const BatchLimits& limits, Deadline deadline) {
  PutOutcome outcome;
  outcome.items.assign(items.size(), TimeIsOver());
  for (const BatchRange range :
       Plan(items, limits, [](const PutItem& item) { return item.value.size_bytes(); })) {
    PutOptions options;
    options.durability = durability;
    options.timeout = deadline.Remaining();
    if (options.timeout == Duration::zero()) break;
    Place(store->MultiPut(TailFirst(items, range), options), range, &outcome.items);
    ++outcome.batches;
  }
  return outcome;
}

}  // namespace ems::context
