#include "mp_sdk/client.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <utility>

#include "common/logging.h"
#include "common/object_key.h"
#include "common/thread_pool.h"
#include "mp_controller/view/controller_client.h"
#include "mp_sdk/internal/local_servers.h"
#include "mp_sdk/internal/one_sided.h"
#include "mp_sdk/internal/put_stager.h"
#include "mp_sdk/internal/router.h"
#include "mp_sdk/internal/staging_memory.h"
#include "mp_sdk/internal/stripe.h"

namespace ems {
namespace {

using internal::Batch;
using internal::BatchItem;
using internal::CopyRequest;
using internal::LocalServers;
using internal::OneSided;
using internal::StagingMemory;
using wire::Op;

constexpr uint64_t kDefaultBytesPerSecond = 100'000'000;
constexpr Duration kTimeoutMax = std::chrono::seconds(30);

Status TimeIsOver() {
  return Error(StatusCode::kDeadlineExceeded, "the call's time passed while it was queued");
}

// What is counted of calls, on lines of the threads' own.
enum Counter : size_t { kGets, kHits, kPuts, kBytesRead, kBytesWritten, kCounters };

Result<bool> IsThere(Result<uint64_t> length) {
  if (length.ok()) return true;
  if (length.status().code() == StatusCode::kNotFound) return false;
  return std::move(length).status();
}

// Bytes of the room that items give.
template <typename Item>
uint64_t RoomOf(std::span<const Item> items) {
  uint64_t bytes = 0;
  for (const Item& item : items) bytes += item.into.size_bytes();
  return bytes;
}

template <typename Item>
void SayTiers(std::span<const Item> items, const Batch& batch) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].tier != nullptr) *items[i].tier = batch.items[i].tier;
  }
}

// What is read one-sided was in DRAM; what is asked for after all says so itself.
template <typename Item>
void AssumeDram(std::span<const Item> items) {
  for (const Item& item : items) {
    if (item.tier != nullptr) *item.tier = Tier::kDram;
  }
}

Result<uint64_t> LengthOf(BatchItem* item) {
  if (item->status.ok()) return item->value_bytes;
  return std::move(item->status);
}

}  // namespace

struct Client::Impl {
  explicit Impl(const ClientOptions& wanted)
      : options(wanted),
        controller(wanted.controller, fmt::format("client {}", ::getpid())),
        router(options, &views,
               [this](Deadline deadline) { (void)controller.Refresh(&views, deadline); }),
        async("ems-sdk", std::max<uint32_t>(1, wanted.async_threads), wanted.async_queue_max) {}

  Deadline DeadlineFor(Duration wanted, uint64_t bytes) const {
    if (wanted > Duration::zero()) return Deadline::After(wanted);
    const std::chrono::microseconds transfer(bytes / (kDefaultBytesPerSecond / 1'000'000));
    return Deadline::After(std::min<Duration>(options.op_timeout + transfer, kTimeoutMax));
  }
  BatchItem MakeItem(std::string_view key, std::string_view route_key) const {
    BatchItem item;
    item.key = key;
    item.slot = SlotOf(ns.ref.id, route_key.empty() ? key : route_key);
    return item;
  }
  Batch MakeBatch(Op op, Deadline deadline) const {
    return Batch{.op = op, .flags = 0, .ns = ns.ref, .deadline = deadline, .items = {}};
  }
  // Finishes items whose key is not a key, runs the rest.
  void Run(Batch* batch);
  uint16_t FlagsOf(const PutOptions& put) const;
  void CountGet(const Result<uint64_t>& result) {
    counters.Add(kGets, 1);
    if (!result.ok()) return;
    counters.Add(kHits, 1);
    counters.Add(kBytesRead, *result);
  }
  void CountGets(std::span<const Result<uint64_t>> results);
  // One-sided reads of the servers on this host, from now on.
  void ReadOneSided();
  // Asks the servers for the length of the values; one result a key.
  std::vector<Result<uint64_t>> AskLengths(std::span<const KeyItem> items,
                                           const GetOptions& options, Deadline deadline);
  Batch LengthsBatch(std::span<const KeyItem> items, const GetOptions& options,
                     Deadline deadline) const;
  std::vector<Result<uint64_t>> AskValues(std::span<const GetItem> items, const GetOptions& options,
                                          Deadline deadline);
  std::vector<Result<uint64_t>> AskRanges(std::span<const RangeItem> items,
                                          const GetOptions& options, Deadline deadline);
  // Lengths or values: one-sided first (`look`), the rest from the servers (`ask`), within one
  // deadline.
  template <typename Item, typename Look, typename Ask>
  std::vector<Result<uint64_t>> ReadMany(std::span<const Item> items, Look look, Ask ask);
  // The staging memory; made when there is none. Errors: kResourceExhausted
  Result<std::shared_ptr<StagingMemory>> Staging();
  // Copies values of a Put into staging memory where that is the quicker way; the buffer must live
  // until the batch is done.
  StagingBuffer StageOrdinary(Batch* batch);

  const ClientOptions options;
  NamespaceInfo ns;  // constant after Connect
  ViewCache views;
  std::unique_ptr<LocalServers> locals;  // nullptr: another transport was chosen
  std::unique_ptr<OneSided> one_sided;   // with `locals`
  ControllerClient controller;
  internal::Router router;
  internal::StripedCounters<kCounters> counters;
  Guarded<std::shared_ptr<StagingMemory>> staging;
  std::atomic<const StagingMemory*> staging_memory{nullptr};  // staging's, once it is there
  internal::PutStager stager;
  ThreadPool async;  // last: its tasks use all of the above
};

void Client::Impl::Run(Batch* batch) {
  for (BatchItem& item : batch->items) {
    if (Status valid = ValidateKey(item.key); !valid.ok()) batch->Finish(&item, std::move(valid));
  }
  router.Run(batch);
}

uint16_t Client::Impl::FlagsOf(const PutOptions& put) const {
  const Durability durability =
      put.durability == Durability::kDefault ? ns.durability : put.durability;
  return static_cast<uint16_t>((put.overwrite ? wire::kFlagOverwrite : 0) |
                               (durability == Durability::kSsd ? wire::kFlagDurableSsd : 0));
}

void Client::Impl::CountGets(std::span<const Result<uint64_t>> results) {
  uint64_t hit = 0;
  uint64_t bytes = 0;
  for (const Result<uint64_t>& result : results) {
    if (!result.ok()) continue;
    ++hit;
    bytes += *result;
  }
  counters.Add(kGets, results.size());
  counters.Add(kHits, hit);
  counters.Add(kBytesRead, bytes);
}

void Client::Impl::ReadOneSided() {
  locals = std::make_unique<LocalServers>(
      LocalServers::Options{.ns = ns.ref,
                            .attach_timeout = options.connect_timeout,
                            .host_id = fabric::HostId(),
                            .token = options.shm_token});
  one_sided = std::make_unique<OneSided>(locals.get(), ns);
  router.Use(locals.get());
}

Batch Client::Impl::LengthsBatch(std::span<const KeyItem> items, const GetOptions& get,
                                 Deadline deadline) const {
  Batch batch = MakeBatch(Op::kExists, deadline);
  if (!get.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.reserve(items.size());
  for (const KeyItem& item : items) batch.items.push_back(MakeItem(item.key, item.route_key));
  return batch;
}

std::vector<Result<uint64_t>> Client::Impl::AskLengths(std::span<const KeyItem> items,
                                                       const GetOptions& get, Deadline deadline) {
  Batch batch = LengthsBatch(items, get, deadline);
  Run(&batch);
  std::vector<Result<uint64_t>> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) results.push_back(LengthOf(&item));
  return results;
}

std::vector<Result<uint64_t>> Client::Impl::AskValues(std::span<const GetItem> items,
                                                      const GetOptions& get, Deadline deadline) {
  Batch batch = MakeBatch(Op::kGet, deadline);
  if (!get.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.reserve(items.size());
  for (const GetItem& item : items) {
    batch.items.push_back(MakeItem(item.key, item.route_key));
    batch.items.back().into = item.into;
    batch.asks_tier = batch.asks_tier || item.tier != nullptr;
  }
  Run(&batch);
  SayTiers(items, batch);
  std::vector<Result<uint64_t>> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) results.push_back(LengthOf(&item));
  return results;
}

std::vector<Result<uint64_t>> Client::Impl::AskRanges(std::span<const RangeItem> items,
                                                      const GetOptions& get, Deadline deadline) {
  Batch batch = MakeBatch(Op::kGetRange, deadline);
  if (!get.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.reserve(items.size());
  for (const RangeItem& item : items) {
    batch.items.push_back(MakeItem(item.key, item.route_key));
    batch.items.back().into = item.into;
    batch.items.back().offset = item.offset;
    batch.items.back().whole_bytes = item.whole_bytes;
    batch.asks_tier = batch.asks_tier || item.tier != nullptr;
  }
  Run(&batch);
  SayTiers(items, batch);
  std::vector<Result<uint64_t>> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) results.push_back(LengthOf(&item));
  return results;
}

template <typename Item, typename Look, typename Ask>
std::vector<Result<uint64_t>> Client::Impl::ReadMany(std::span<const Item> items, Look look,
                                                     Ask ask) {
  if (one_sided == nullptr) return ask(items);
  std::vector<Result<uint64_t>> results(items.size(), Result<uint64_t>(uint64_t{0}));
  std::vector<uint32_t> left;
  look(std::span(results), &left);
  if (left.empty()) return results;
  if (left.size() == items.size()) return ask(items);
  std::vector<Item> rest;
  rest.reserve(left.size());
  for (const uint32_t i : left) rest.push_back(items[i]);
  std::vector<Result<uint64_t>> asked = ask(std::span<const Item>(rest));
  for (size_t i = 0; i < left.size(); ++i) results[left[i]] = std::move(asked[i]);
  return results;
}

Result<std::shared_ptr<StagingMemory>> Client::Impl::Staging() {
  {
    auto held = staging.Lock();
    if (*held != nullptr) return *held;
  }
  EMS_ASSIGN_OR_RETURN(std::shared_ptr<StagingMemory> made,
                       StagingMemory::Create(options.staging_bytes));
  {
    auto held = staging.Lock();
    if (*held != nullptr) return *held;  // another thread was faster
    *held = made;
    staging_memory.store(made.get(), std::memory_order_release);
  }
  if (locals != nullptr) locals->Offer(made);
  return made;
}

StagingBuffer Client::Impl::StageOrdinary(Batch* batch) {
  if (locals == nullptr || !internal::PutStager::Wants(*batch, locals.get())) return {};
  const ViewCache::View view = views.view();
  const auto memory = Staging();
  if (view == nullptr || !memory.ok()) return {};
  return stager.Stage(batch, *view, locals.get(), memory->get());
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  const Deadline deadline = Deadline::After(options.start_timeout);
  EMS_ASSIGN_OR_RETURN(impl->ns, impl->controller.GetNamespace(options.name_space, deadline));
  if (options.transport == TransportChoice::kAuto) impl->ReadOneSided();
  impl->controller.StartWatch(&impl->views, [raw = impl.get()] {
    if (raw->locals != nullptr) raw->locals->Follow(raw->views.view());
  });
  if (impl->views.WaitForView(ViewVersion::FromPacked(1), deadline) == nullptr) {
    return Error(
        StatusCode::kUnavailable, "controller {} sent no view within {} ms", options.controller,
        std::chrono::duration_cast<std::chrono::milliseconds>(options.start_timeout).count());
  }
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

Status Client::Put(std::string_view key, ConstBuffers value, const PutOptions& options) {
  const PutItem item{.key = key, .value = value, .route_key = options.route_key};
  return std::move(MultiPut(std::span(&item, 1), options)[0]);
}

Result<uint64_t> Client::Get(std::string_view key, MutableBuffers into, const GetOptions& options) {
  std::optional<Result<uint64_t>> result;
  if (impl_->one_sided != nullptr) {
    result = impl_->one_sided->Read(key, options.route_key, {.into = into}, options);
  }
  if (!result) {
    const GetItem item{.key = key, .into = into, .route_key = options.route_key};
    const Deadline deadline = impl_->DeadlineFor(options.timeout, into.size_bytes());
    result = std::move(impl_->AskValues(std::span(&item, 1), options, deadline)[0]);
  }
  impl_->CountGet(*result);
  return *std::move(result);
}

Result<std::string> Client::Get(std::string_view key, const GetOptions& options) {
  std::string value;
  std::optional<Result<uint64_t>> result;
  if (impl_->one_sided != nullptr) {
    result = impl_->one_sided->Read(key, options.route_key, CopyRequest{.into = {}, .grow = &value},
                                    options);
  }
  if (!result) {
    Batch batch = impl_->MakeBatch(
        Op::kGet, impl_->DeadlineFor(options.timeout, wire::kValueBytesLimit / 16));
    if (!options.touch) batch.flags |= wire::kFlagNoTouch;
    batch.items.push_back(impl_->MakeItem(key, options.route_key));
    batch.items[0].grow = &value;
    impl_->Run(&batch);
    result = LengthOf(&batch.items[0]);
  }
  impl_->CountGet(*result);
  if (!result->ok()) return std::move(*result).status();
  return value;
}

Result<ObjectView> Client::GetView(std::string_view key, const GetOptions& options) {
  if (impl_->one_sided != nullptr) {
    auto settled = impl_->one_sided->View({.key = key, .route_key = options.route_key}, options);
    if (settled) {
      impl_->counters.Add(kGets, 1);
      impl_->counters.Add(kHits, settled->ok() ? 1 : 0);
      return *std::move(settled);
    }
  }
  ObjectView view;
  Batch batch =
      impl_->MakeBatch(Op::kGet, impl_->DeadlineFor(options.timeout, wire::kValueBytesLimit / 16));
  if (!options.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.push_back(impl_->MakeItem(key, options.route_key));
  batch.items[0].grow = &view.copy_;
  impl_->Run(&batch);
  view.checksum_ = batch.items[0].checksum;
  const Result<uint64_t> result = LengthOf(&batch.items[0]);
  impl_->CountGet(result);
  if (!result.ok()) return result.status();
  view.bytes_ = AsBytes(view.copy_);
  view.valid_ = true;
  return view;
}

Result<StagingBuffer> Client::AllocateBuffer(uint64_t bytes) {
  EMS_ASSIGN_OR_RETURN(const std::shared_ptr<StagingMemory> memory, impl_->Staging());
  return memory->Allocate(bytes);
}

Status Client::GetRange(std::string_view key, uint64_t offset, MutableBuffers into,
                        const GetOptions& options) {
  std::optional<Result<uint64_t>> result;
  if (impl_->one_sided != nullptr) {
    result = impl_->one_sided->Read(key, options.route_key,
                                    {.into = into, .ranged = true, .offset = offset}, options);
  }
  if (!result) {
    const RangeItem item{
        .key = key, .offset = offset, .into = into, .route_key = options.route_key};
    const Deadline deadline = impl_->DeadlineFor(options.timeout, into.size_bytes());
    result = std::move(impl_->AskRanges(std::span(&item, 1), options, deadline)[0]);
  }
  impl_->CountGet(*result);
  return std::move(*result).status();
}

std::vector<Status> Client::MultiGetRange(std::span<const RangeItem> items,
                                          const GetOptions& options) {
  AssumeDram(items);
  const Deadline deadline = impl_->DeadlineFor(options.timeout, RoomOf(items));
  std::vector<Result<uint64_t>> lengths = impl_->ReadMany(
      items,
      [&](std::span<Result<uint64_t>> into, std::vector<uint32_t>* left) {
        impl_->one_sided->MultiReadRange(items, options, deadline, into, left);
      },
      [&](std::span<const RangeItem> rest) { return impl_->AskRanges(rest, options, deadline); });
  impl_->CountGets(lengths);
  std::vector<Status> results;
  results.reserve(items.size());
  for (Result<uint64_t>& length : lengths) results.push_back(std::move(length).status());
  return results;
}

Result<uint64_t> Client::Stat(std::string_view key, const GetOptions& options) {
  const KeyItem item{.key = key, .route_key = options.route_key};
  if (impl_->one_sided != nullptr) {
    if (auto settled = impl_->one_sided->Lookup(item, options)) return *std::move(settled);
  }
  const Deadline deadline = impl_->DeadlineFor(options.timeout, 0);
  return std::move(impl_->AskLengths(std::span(&item, 1), options, deadline)[0]);
}

Result<bool> Client::Exists(std::string_view key, const GetOptions& options) {
  return IsThere(Stat(key, options));
}

Status Client::Remove(std::string_view key, const GetOptions& options) {
  const KeyItem item{.key = key, .route_key = options.route_key};
  return std::move(MultiRemove(std::span(&item, 1), options)[0]);
}

std::vector<Status> Client::MultiPut(std::span<const PutItem> items, const PutOptions& options) {
  const uint64_t bytes =
      std::accumulate(items.begin(), items.end(), uint64_t{0},
                      [](uint64_t sum, const PutItem& i) { return sum + i.value.size_bytes(); });
  Batch batch = impl_->MakeBatch(Op::kPut, impl_->DeadlineFor(options.timeout, bytes));
  batch.flags = impl_->FlagsOf(options);
  batch.items.reserve(items.size());
  const StagingMemory* const staging = impl_->staging_memory.load(std::memory_order_acquire);
  for (const PutItem& put : items) {
    batch.items.push_back(impl_->MakeItem(put.key, put.route_key));
    BatchItem& item = batch.items.back();
    item.value = put.value;
    if (staging != nullptr && put.value.parts().size() == 1) {
      item.staged_offset = staging->OffsetOf(put.value.parts()[0]);
    }
  }
  StagingBuffer scratch = impl_->StageOrdinary(&batch);
  impl_->Run(&batch);
  impl_->stager.GiveBack(std::move(scratch));
  impl_->counters.Add(kPuts, items.size());
  std::vector<Status> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) {
    if (item.status.ok()) impl_->counters.Add(kBytesWritten, item.value.size_bytes());
    results.push_back(std::move(item.status));
  }
  return results;
}

std::vector<Result<uint64_t>> Client::MultiGet(std::span<const GetItem> items,
                                               const GetOptions& options) {
  AssumeDram(items);
  const Deadline deadline = impl_->DeadlineFor(options.timeout, RoomOf(items));
  std::vector<Result<uint64_t>> results = impl_->ReadMany(
      items,
      [&](std::span<Result<uint64_t>> into, std::vector<uint32_t>* left) {
        impl_->one_sided->MultiRead(items, options, deadline, into, left);
      },
      [&](std::span<const GetItem> rest) { return impl_->AskValues(rest, options, deadline); });
  impl_->CountGets(results);
  return results;
}

std::vector<Result<bool>> Client::MultiExists(std::span<const KeyItem> items,
                                              const GetOptions& options) {
  const Deadline deadline = impl_->DeadlineFor(options.timeout, 0);
  std::vector<Result<uint64_t>> lengths = impl_->ReadMany(
      items,
      [&](std::span<Result<uint64_t>> into, std::vector<uint32_t>* left) {
        impl_->one_sided->MultiLookup(items, options, into, left);
      },
      [&](std::span<const KeyItem> rest) { return impl_->AskLengths(rest, options, deadline); });
  std::vector<Result<bool>> results;
  results.reserve(items.size());
  for (Result<uint64_t>& length : lengths) results.push_back(IsThere(std::move(length)));
  return results;
}

std::vector<Result<ObjectStat>> Client::MultiStat(std::span<const KeyItem> items,
                                                  const GetOptions& options) {
  Batch batch = impl_->LengthsBatch(items, options, impl_->DeadlineFor(options.timeout, 0));
  batch.asks_tier = true;
  impl_->Run(&batch);
  std::vector<Result<ObjectStat>> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) {
    if (item.status.ok()) {
      results.emplace_back(ObjectStat{.bytes = item.value_bytes, .tier = item.tier});
    } else {
      results.emplace_back(std::move(item.status));
    }
  }
  return results;
}

std::vector<Status> Client::MultiRemove(std::span<const KeyItem> items, const GetOptions& options) {
  Batch batch = impl_->MakeBatch(Op::kRemove, impl_->DeadlineFor(options.timeout, 0));
  batch.items.reserve(items.size());
  for (const KeyItem& item : items)
    batch.items.push_back(impl_->MakeItem(item.key, item.route_key));
  impl_->Run(&batch);
  std::vector<Status> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) results.push_back(std::move(item.status));
  return results;
}

void Client::PutAsync(std::string_view key, ConstBuffers value, const PutOptions& options,
                      std::function<void(Status)> done) {
  // The call's time runs from now, not from when a thread is free.
  const Deadline deadline = impl_->DeadlineFor(options.timeout, value.size_bytes());
  auto work = [this, key = std::string(key), value, options = PutOptions(options),
               route = std::string(options.route_key), done, deadline]() mutable {
    options.route_key = route;
    options.timeout = deadline.Remaining();
    if (options.timeout == Duration::zero()) return done(TimeIsOver());
    done(Put(key, value, options));
  };
  if (!Submit(std::move(work)))
    done(Error(StatusCode::kResourceExhausted, "too many async calls are waiting"));
}

void Client::GetAsync(std::string_view key, MutableBuffers into, const GetOptions& options,
                      std::function<void(Result<uint64_t>)> done) {
  const Deadline deadline = impl_->DeadlineFor(options.timeout, into.size_bytes());
  auto work = [this, key = std::string(key), into, options = GetOptions(options),
               route = std::string(options.route_key), done, deadline]() mutable {
    options.route_key = route;
    options.timeout = deadline.Remaining();
    if (options.timeout == Duration::zero()) return done(TimeIsOver());
    done(Get(key, into, options));
  };
  if (!Submit(std::move(work)))
    done(Error(StatusCode::kResourceExhausted, "too many async calls are waiting"));
}

std::future<Status> Client::PutAsync(std::string_view key, ConstBuffers value,
                                     const PutOptions& options) {
  auto promise = std::make_shared<std::promise<Status>>();
  PutAsync(key, value, options,
           [promise](Status status) { promise->set_value(std::move(status)); });
  return promise->get_future();
}

std::future<Result<uint64_t>> Client::GetAsync(std::string_view key, MutableBuffers into,
                                               const GetOptions& options) {
  auto promise = std::make_shared<std::promise<Result<uint64_t>>>();
  GetAsync(key, into, options,
           [promise](Result<uint64_t> result) { promise->set_value(std::move(result)); });
  return promise->get_future();
}

bool Client::Submit(std::function<void()>&& work) {
  return impl_->async.TrySubmit(std::move(work));
}

Result<std::string> Client::ServerStats(std::string_view node_name, Duration timeout) {
  const ViewCache::View view = impl_->views.view();
  for (const NodeInfo& node : view->nodes()) {
    if (node.name == node_name)
      return impl_->router.Ask(node, Op::kStats, Deadline::After(timeout));
  }
  return Error(StatusCode::kNotFound, "no server \"{}\" in view {}.{}", node_name,
               view->version().term(), view->version().epoch());
}

ClientStats Client::stats() const {
  const internal::RouterStats& router = impl_->router.stats();
  ClientStats stats;
  stats.gets = impl_->counters.Sum(kGets);
  stats.hits = impl_->counters.Sum(kHits);
  stats.puts = impl_->counters.Sum(kPuts);
  stats.bytes_read = impl_->counters.Sum(kBytesRead);
  stats.bytes_written = impl_->counters.Sum(kBytesWritten);
  stats.retries = router.retries.load(std::memory_order_relaxed);
  stats.wrong_owner = router.wrong_owner.load(std::memory_order_relaxed);
  stats.breaker_opened = router.breaker_opened.load(std::memory_order_relaxed);
  stats.checksum_mismatches = router.checksum_mismatches.load(std::memory_order_relaxed);
  if (impl_->one_sided != nullptr) {
    const internal::OneSidedStats sided = impl_->one_sided->stats();
    stats.one_sided = sided.one_sided;
    stats.not_attached = sided.not_attached;
    stats.not_current = sided.not_current;
    stats.not_conclusive = sided.not_conclusive;
    stats.checksum_mismatches += sided.mismatches;
  }
  return stats;
}

ViewCache& Client::views() { return impl_->views; }
NamespaceInfo Client::name_space() const { return impl_->ns; }

}  // namespace ems
