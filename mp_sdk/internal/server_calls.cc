#include "mp_sdk/internal/server_calls.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "common/object_key.h"

namespace ems::internal {
namespace {

using wire::Op;

constexpr uint64_t kDefaultBytesPerSecond = 100'000'000;
constexpr Duration kTimeoutMax = std::chrono::seconds(30);
constexpr Duration kSlowCall = std::chrono::seconds(1);  // is logged

Tier* TierOf(const KeyItem&) { return nullptr; }
template <typename Item>
Tier* TierOf(const Item& item) {
  return item.tier;
}

Op OpFor(std::span<const KeyItem>) { return Op::kExists; }
Op OpFor(std::span<const GetItem>) { return Op::kGet; }
Op OpFor(std::span<const RangeItem>) { return Op::kGetRange; }

void Fill(const KeyItem&, BatchItem*) {}
void Fill(const GetItem& item, BatchItem* to) {
  to->into = item.into;
  to->grow = item.grow;
}
void Fill(const RangeItem& item, BatchItem* to) {
  to->into = item.into;
  to->offset = item.offset;
  to->whole_bytes = item.whole_bytes;
}

Result<uint64_t> LengthOf(BatchItem* item) {
  if (item->status.ok()) return item->value_bytes;
  return std::move(item->status);
}

// `node` and `request` are those of the server's own line.
void LogSlow(const Batch& batch, Duration took) {
  const auto failed = std::ranges::count_if(batch.items, [](const BatchItem& item) {
    return !item.status.ok() && item.status.code() != StatusCode::kNotFound;
  });
  EMS_LOG(kWarn, "mp_sdk", "slow call op={} keys={} failed={} ms={} node={} request={:08x}",
          wire::OpName(batch.op), batch.items.size(), failed, took / std::chrono::milliseconds(1),
          batch.last.node.value(), batch.last.id);
}

}  // namespace

Deadline ServerCalls::DeadlineFor(Duration wanted, uint64_t bytes) const {
  if (wanted > Duration::zero()) return Deadline::After(wanted);
  const std::chrono::microseconds transfer(bytes / (kDefaultBytesPerSecond / 1'000'000));
  return Deadline::After(std::min<Duration>(options_.op_timeout + transfer, kTimeoutMax));
}

Batch ServerCalls::MakeBatch(Op op, Deadline deadline, const GetOptions* options) const {
  const bool touch = options == nullptr || options->touch;
  return Batch{.op = op,
               .flags = static_cast<uint16_t>(touch ? 0 : wire::kFlagNoTouch),
               .ns = ns_,
               .deadline = deadline,
               .items = {},
               .immutable = immutable_};
}

BatchItem ServerCalls::MakeItem(std::string_view key, std::string_view route_key) const {
  BatchItem item;
  item.key = key;
  item.slot = SlotOf(ns_.id, route_key.empty() ? key : route_key);
  return item;
}

Batch ServerCalls::MakeBatch(Op op, std::span<const KeyItem> items, Deadline deadline,
                             const GetOptions* options) const {
  Batch batch = MakeBatch(op, deadline, options);
  batch.items.reserve(items.size());
  for (const KeyItem& item : items) batch.items.push_back(MakeItem(item.key, item.route_key));
  return batch;
}

void ServerCalls::Run(Batch* batch) const {
  EMS_CHECK(ns_.generation != 0, "a call before Bind");
  for (BatchItem& item : batch->items) {
    if (Status valid = ValidateKey(item.key); !valid.ok()) batch->Finish(&item, std::move(valid));
  }
  const TimePoint begun = Clock::System().Now();
  router_->Run(batch);
  if (latencies_ == nullptr || batch->items.empty()) return;
  const Duration took = Clock::System().Now() - begun;
  latencies_->Record(batch->op, batch->items.size(), CallPath::kSocket, took);
  if (took >= kSlowCall) LogSlow(*batch, took);
}

template <typename Item>
std::vector<Result<uint64_t>> ServerCalls::Ask(std::span<const Item> items,
                                               const GetOptions& options, Deadline deadline) const {
  Batch batch = MakeBatch(OpFor(items), deadline, &options);
  batch.items.reserve(items.size());
  for (const Item& item : items) {
    batch.items.push_back(MakeItem(item.key, item.route_key));
    Fill(item, &batch.items.back());
    batch.asks_tier = batch.asks_tier || TierOf(item) != nullptr;
  }
  Run(&batch);
  std::vector<Result<uint64_t>> results;
  results.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (Tier* const tier = TierOf(items[i])) *tier = batch.items[i].tier;
    results.push_back(LengthOf(&batch.items[i]));
  }
  return results;
}

template std::vector<Result<uint64_t>> ServerCalls::Ask(std::span<const KeyItem>, const GetOptions&,
                                                        Deadline) const;
template std::vector<Result<uint64_t>> ServerCalls::Ask(std::span<const GetItem>, const GetOptions&,
                                                        Deadline) const;
template std::vector<Result<uint64_t>> ServerCalls::Ask(std::span<const RangeItem>,
                                                        const GetOptions&, Deadline) const;

Result<uint64_t> ServerCalls::AskWhole(std::string_view key, const GetOptions& options,
                                       std::string* value, uint64_t* checksum) const {
  Batch batch =
      MakeBatch(Op::kGet, DeadlineFor(options.timeout, wire::kValueBytesLimit / 16), &options);
  batch.items.push_back(MakeItem(key, options.route_key));
  batch.items[0].grow = value;
  Run(&batch);
  if (checksum != nullptr) *checksum = batch.items[0].checksum;
  return LengthOf(&batch.items[0]);
}

}  // namespace ems::internal
