#include "ems_context/internal/block_batches.h"

#include <algorithm>

#include "common/check.h"

namespace ems::context {
namespace {

Status NotReached() {
  return Error(StatusCode::kDeadlineExceeded, "the call's time was over before this block's batch");
}

template <typename R>
void FillFrom(size_t first, const Status& why, std::vector<R>* results) {
  std::fill(results->begin() + static_cast<ptrdiff_t>(first), results->end(), R(why));
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

// Never 0, which would stand for the store's own default.
Duration TimeLeft(const CallBounds& bounds) {
  return std::max(bounds.deadline.Remaining(), Duration(1));
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

Status CallBounds::Check() const {
  if (cancelled && cancelled())
    return Error(StatusCode::kCancelled, "the call was cancelled before this block's batch");
  return deadline.Passed() ? NotReached() : OkStatus();
}

std::vector<Result<bool>> ExistsInBatches(BlockStore* store, std::span<const std::string> keys,
                                          ExistsScope scope, bool touch, const BatchLimits& limits,
                                          const CallBounds& bounds) {
  std::vector<KeyItem> items(keys.size());
  std::transform(keys.begin(), keys.end(), items.begin(),
                 [](const std::string& key) { return KeyItem{.key = key}; });
  const std::span<const KeyItem> all(items);
  std::vector<Result<bool>> present(keys.size(), Result<bool>(NotReached()));
  for (const BatchRange range : Plan(all, limits, [](const KeyItem&) { return uint64_t{0}; })) {
    if (const Status stop = bounds.Check(); !stop.ok()) {
      FillFrom(range.begin, stop, &present);
      break;
    }
    Place(store->MultiExists(TailFirst(all, range), ReadOptions(touch, TimeLeft(bounds))), range,
          &present);
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
                                           const CallBounds& bounds) {
  std::vector<Result<uint64_t>> blocks(items.size(), Result<uint64_t>(NotReached()));
  for (const BatchRange range :
       Plan(items, limits, [](const GetItem& item) { return item.into.size_bytes(); })) {
    if (const Status stop = bounds.Check(); !stop.ok()) {
      FillFrom(range.begin, stop, &blocks);
      break;
    }
    Place(store->MultiGet(TailFirst(items, range), ReadOptions(touch, TimeLeft(bounds))), range,
          &blocks);
  }
  return blocks;
}

PutOutcome PutInBatches(BlockStore* store, std::span<const PutItem> items, Durability durability,
                        const BatchLimits& limits, const CallBounds& bounds) {
  PutOutcome outcome;
  outcome.items.assign(items.size(), NotReached());
  for (const BatchRange range :
       Plan(items, limits, [](const PutItem& item) { return item.value.size_bytes(); })) {
    if (const Status stop = bounds.Check(); !stop.ok()) {
      FillFrom(range.begin, stop, &outcome.items);
      break;
    }
    PutOptions options;
    options.durability = durability;
    options.timeout = TimeLeft(bounds);
    Place(store->MultiPut(TailFirst(items, range), options), range, &outcome.items);
    ++outcome.batches;
  }
  return outcome;
}

}  // namespace ems::context
