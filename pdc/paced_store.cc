#include "pdc/paced_store.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::pdc {
namespace {

// As ems::Client's.
constexpr uint64_t kDefaultBytesPerSecond = 100'000'000;
constexpr Duration kTimeoutMax = std::chrono::seconds(30);
// How long Stop may take to be noticed.
constexpr Duration kSleepMost = std::chrono::milliseconds(10);

bool IsOk(const Status& result) { return result.ok(); }
bool IsOk(const Result<uint64_t>& result) { return result.ok(); }

// The room or the values of items.
template <typename Item, typename SizeOf>
std::vector<uint64_t> SizesOf(std::span<const Item> items, SizeOf size_of) {
  std::vector<uint64_t> sizes(items.size());
  std::transform(items.begin(), items.end(), sizes.begin(), size_of);
  return sizes;
}

uint64_t Sum(std::span<const uint64_t> sizes) {
  uint64_t sum = 0;
  for (const uint64_t size : sizes) sum += size;
  return sum;
}

}  // namespace

PacedStore::PacedStore(context::BlockStore* store, const PoolPaths& paths,
                       PacedStoreOptions options)
    : store_(store), paths_(paths), options_(std::move(options)) {}

PacedStore::Call PacedStore::Begin(uint64_t bytes, Duration timeout) const {
  const TimePoint now = options_.clock->Now();
  if (timeout == Duration::zero()) {
    timeout = std::min<Duration>(
        options_.op_timeout + fabric::TimeAt(bytes, kDefaultBytesPerSecond), kTimeoutMax);
  }
  return {now, now + std::min<Duration>(timeout, Deadline::kMost)};
}

Status PacedStore::SleepTo(TimePoint at) const {
  while (true) {
    const TimePoint now = options_.clock->Now();
    if (now >= at) return OkStatus();
    if (stopped_.load(std::memory_order_relaxed))
      return Error(StatusCode::kCancelled, "stopped while bytes were on the emulated path");
    options_.sleep(std::min(at, now + kSleepMost));
  }
}

Status PacedStore::Send(fabric::EmulatedTransfer* transfer, uint64_t piece_bytes, uint64_t bytes,
                        TimePoint deadline) const {
  for (uint64_t sent = 0; sent < bytes;) {
    const uint64_t piece = std::min(piece_bytes, bytes - sent);
    const TimePoint due = transfer->Add(piece);
    if (transfer->arrival() > deadline) {
      EMS_RETURN_IF_ERROR(SleepTo(deadline));
      return Error(StatusCode::kDeadlineExceeded,
                   "{} of {} bytes were through the emulated path in time", sent, bytes);
    }
    EMS_RETURN_IF_ERROR(SleepTo(due));
    sent += piece;
  }
  return OkStatus();
}

template <typename R>
void PacedStore::Pace(const fabric::EmulatedPath* path, const Call& call,
                      std::span<const uint64_t> bytes, std::vector<R>* results) const {
  EMS_CHECK(results->size() == bytes.size(), "{} results of {} items", results->size(),
            bytes.size());
  if (path == nullptr) return;
  fabric::EmulatedTransfer transfer(path, call.begin);
  std::vector<size_t> sent;         // items whose bytes take the path
  std::vector<TimePoint> arrivals;  // of as many of them as have left
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (IsOk((*results)[i]) && bytes[i] > 0) sent.push_back(i);
  }
  if (sent.empty()) return;
  Status end;
  for (size_t i = 0; i < sent.size() && end.ok(); ++i) {
    end = Send(&transfer, path->piece_bytes(), bytes[sent[i]], call.deadline);
    if (end.ok()) arrivals.push_back(transfer.arrival());
  }
  if (end.ok()) end = SleepTo(transfer.arrival());
  if (end.ok()) return;
  const TimePoint now = options_.clock->Now();
  for (size_t i = 0; i < sent.size(); ++i) {
    if (i >= arrivals.size() || arrivals[i] > now) (*results)[sent[i]] = end;
  }
}

std::vector<Result<bool>> PacedStore::MultiExists(std::span<const KeyItem> items,
                                                  const GetOptions& options) {
  return store_->MultiExists(items, options);
}

std::vector<Result<uint64_t>> PacedStore::MultiGet(std::span<const GetItem> items,
                                                   const GetOptions& options) {
  std::vector<uint64_t> bytes =
      SizesOf(items, [](const GetItem& item) { return item.into.size_bytes(); });
  const Call call = Begin(Sum(bytes), options.timeout);
  auto lengths = store_->MultiGet(items, options);
  // Values may be shorter than the room for them.
  for (size_t i = 0; i < std::min(bytes.size(), lengths.size()); ++i) {
    if (lengths[i].ok()) bytes[i] = *lengths[i];
  }
  Pace(paths_.read, call, bytes, &lengths);
  return lengths;
}

std::vector<Status> PacedStore::MultiGetRange(std::span<const RangeItem> items,
                                              const GetOptions& options) {
  const auto bytes = SizesOf(items, [](const RangeItem& item) { return item.into.size_bytes(); });
  const Call call = Begin(Sum(bytes), options.timeout);
  auto results = store_->MultiGetRange(items, options);
  Pace(paths_.read, call, bytes, &results);
  return results;
}

std::vector<Status> PacedStore::MultiPut(std::span<const PutItem> items,
                                         const PutOptions& options) {
  const auto bytes = SizesOf(items, [](const PutItem& item) { return item.value.size_bytes(); });
  const Call call = Begin(Sum(bytes), options.timeout);
  auto results = store_->MultiPut(items, options);
  Pace(paths_.write, call, bytes, &results);
  return results;
}

}  // namespace ems::pdc
