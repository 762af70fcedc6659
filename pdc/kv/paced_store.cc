#include "pdc/kv/paced_store.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::pdc {
namespace {

// As ems::Client's.
constexpr uint64_t kDefaultBytesPerSecond = 100'000'000;
constexpr Duration kTimeoutMax = std::chrono::seconds(30);

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

Result<PoolPaths> PathsToPool(fabric::EmulatedFabric* fabric, const fabric::Endpoint& die,
                              fabric::Plane plane) {
  const fabric::Endpoint pool = fabric::Endpoint::Cpu(0, 0);
  PoolPaths paths;
  EMS_ASSIGN_OR_RETURN(paths.read, fabric->Path(plane, die, pool, fabric::Access::kRead));
  EMS_ASSIGN_OR_RETURN(paths.write, fabric->Path(plane, die, pool, fabric::Access::kWrite));
  return paths;
}

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

void PacedStore::SleepTo(TimePoint at) const {
  while (options_.clock->Now() < at) options_.sleep(at);
}

Status PacedStore::Send(fabric::EmulatedTransfer* transfer, uint64_t piece_bytes, uint64_t bytes,
                        TimePoint deadline) const {
  for (uint64_t sent = 0; sent < bytes;) {
    const uint64_t piece = std::min(piece_bytes, bytes - sent);
    const TimePoint due = transfer->Add(piece);
    if (transfer->arrival() > deadline) {
      SleepTo(deadline);
      return Error(StatusCode::kDeadlineExceeded,
                   "{} of {} bytes were through the emulated path in time", sent, bytes);
    }
    SleepTo(due);
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
  std::vector<size_t> sent;  // items whose bytes take the path
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (IsOk((*results)[i]) && bytes[i] > 0) sent.push_back(i);
  }
  if (sent.empty()) return;
  Status end;
  for (const size_t i : sent) {
    if (end.ok()) end = Send(&transfer, path->piece_bytes(), bytes[i], call.deadline);
    if (!end.ok()) (*results)[i] = end;
  }
  if (end.ok()) SleepTo(transfer.arrival());
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
