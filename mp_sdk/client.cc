#include "mp_sdk/client.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <utility>

#include "cluster/controller_client.h"
#include "cluster/while_starting.h"
#include "common/check.h"
#include "common/copy_crew.h"
#include "common/logging.h"
#include "common/thread_pool.h"
#include "mp_sdk/internal/call_latencies.h"
#include "mp_sdk/internal/local_servers.h"
#include "mp_sdk/internal/one_sided.h"
#include "mp_sdk/internal/put_stager.h"
#include "mp_sdk/internal/router.h"
#include "mp_sdk/internal/server_calls.h"
#include "mp_sdk/internal/staging_memory.h"
#include "mp_sdk/internal/stripe.h"

namespace ems {
namespace {

using internal::Batch;
using internal::BatchItem;
using internal::CopyRequest;
using internal::LocalServers;
using internal::OneSided;
using internal::ServerCalls;
using internal::StagingMemory;
using wire::Op;

// Counters of calls, each thread's on cache lines of its own.
enum Counter : size_t { kGets, kHits, kPuts, kBytesRead, kBytesWritten, kCounters };

Result<bool> IsThere(Result<uint64_t> length) {
  if (length.ok()) return true;
  if (length.status().code() == StatusCode::kNotFound) return false;
  return std::move(length).status();
}

std::vector<Status> StatusesOf(Batch* batch) {
  std::vector<Status> statuses;
  statuses.reserve(batch->items.size());
  for (BatchItem& item : batch->items) statuses.push_back(std::move(item.status));
  return statuses;
}

// Bytes of the room that items give.
template <typename Item>
uint64_t RoomOf(std::span<const Item> items) {
  uint64_t bytes = 0;
  for (const Item& item : items) bytes += item.into.size_bytes();
  return bytes;
}

// What is read one-sided was in DRAM; what is asked for after all says so itself.
template <typename Item>
void AssumeDram(std::span<const Item> items) {
  for (const Item& item : items) {
    if (item.tier != nullptr) *item.tier = Tier::kDram;
  }
}

}  // namespace

struct Client::Impl {
  explicit Impl(const ClientOptions& wanted)
      : options(wanted),
        controller(wanted.controller, fmt::format("client {}", ::getpid())),
        router(options, &views,
               [this](Deadline deadline) { (void)controller.Refresh(&views, deadline); }),
        servers(options, &router, &latencies),
        async("ems-sdk", std::max<uint32_t>(1, wanted.async_threads), wanted.async_queue_max) {}

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
  // A value or a range, one-sided or from its server.
  template <typename Item>
  Result<uint64_t> ReadOne(const Item& item, const GetOptions& get);
  // Lengths, values or ranges: one-sided first (`look`), the rest from the servers.
  template <typename Item, typename Look>
  std::vector<Result<uint64_t>> ReadMany(std::span<const Item> items, const GetOptions& get,
                                         Deadline deadline, Look look);
  // Runs `work` of one Async call on an "ems-sdk" thread, with what is left of its time.
  template <typename Options, typename Done, typename Work>
  void RunAsync(const Options& wanted, uint64_t bytes, Done done, Work work);
  // The staging memory; made when there is none. Errors: kResourceExhausted
  Result<std::shared_ptr<StagingMemory>> Staging();
  // Copies values of a Put into staging memory where that is the quicker way; the buffer must live
  // until the batch is done.
  StagingBuffer StageOrdinary(Batch* batch);

  const ClientOptions options;
  NamespaceInfo ns;  // constant after Connect
  ViewCache views;
  internal::CallLatencies latencies;
  std::unique_ptr<LocalServers> locals;  // nullptr: another transport was chosen
  CopyCrew crew{"ems-copy", CopyCrew::UsualHelpers()};
  std::unique_ptr<OneSided> one_sided;  // with `locals`
  ControllerClient controller;
  internal::Router router;
  ServerCalls servers;
  internal::StripedCounters<kCounters> counters;
  Guarded<std::shared_ptr<StagingMemory>> staging;
  std::atomic<const StagingMemory*> staging_memory{nullptr};  // staging's, once it is there
  internal::PutStager stager;
  ThreadPool async;  // last: its tasks use all of the above
};

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
  one_sided = std::make_unique<OneSided>(locals.get(), ns, &latencies, &crew);
  router.Use(locals.get());
}

template <typename Item>
Result<uint64_t> Client::Impl::ReadOne(const Item& item, const GetOptions& get) {
  std::optional<Result<uint64_t>> result;
  if (one_sided != nullptr)
    result = one_sided->Read(item.key, item.route_key, internal::CopyOf(item), get);
  if (!result) {
    const Deadline deadline = servers.DeadlineFor(get.timeout, item.into.size_bytes());
    result = std::move(servers.Ask(std::span(&item, 1), get, deadline)[0]);
  }
  CountGet(*result);
  return *std::move(result);
}

template <typename Item, typename Look>
std::vector<Result<uint64_t>> Client::Impl::ReadMany(std::span<const Item> items,
                                                     const GetOptions& get, Deadline deadline,
                                                     Look look) {
  if (one_sided == nullptr) return servers.Ask(items, get, deadline);
  std::vector<Result<uint64_t>> results(items.size(), Result<uint64_t>(uint64_t{0}));
  std::vector<uint32_t> left;
  look(std::span(results), &left);
  EMS_CHECK(left.size() <= items.size(), "{} of {} items are left", left.size(), items.size());
  if (left.empty()) return results;
  if (left.size() == items.size()) return servers.Ask(items, get, deadline);
  std::vector<Item> rest;
  rest.reserve(left.size());
  for (const uint32_t i : left) rest.push_back(items[i]);
  std::vector<Result<uint64_t>> asked = servers.Ask(std::span<const Item>(rest), get, deadline);
  EMS_CHECK(asked.size() == left.size());
  for (size_t i = 0; i < left.size(); ++i) results[left[i]] = std::move(asked[i]);
  return results;
}

template <typename Options, typename Done, typename Work>
void Client::Impl::RunAsync(const Options& wanted, uint64_t bytes, Done done, Work work) {
  // The call's time runs from now, not from when a thread is free.
  const Deadline deadline = servers.DeadlineFor(wanted.timeout, bytes);
  auto task = [wanted = Options(wanted), route = std::string(wanted.route_key), deadline, done,
               work = std::move(work)]() mutable {
    wanted.route_key = route;
    wanted.timeout = deadline.Remaining();
    if (wanted.timeout == Duration::zero()) {
      return done(
          Error(StatusCode::kDeadlineExceeded, "the call's time passed while it was queued"));
    }
    done(work(wanted));
  };
  if (!async.TrySubmit(std::move(task)))
    done(Error(StatusCode::kResourceExhausted, "too many async calls are waiting"));
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
  // Of several controllers none may lead yet.
  EMS_ASSIGN_OR_RETURN(impl->ns, WhileStarting(deadline, [&](Deadline until) {
                         return impl->controller.GetNamespace(options.name_space, until);
                       }));
  impl->servers.Bind(impl->ns.ref, impl->ns.immutable);
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
  return impl_->ReadOne(GetItem{.key = key, .into = into, .route_key = options.route_key}, options);
}

Result<std::string> Client::Get(std::string_view key, const GetOptions& options) {
  std::string value;
  std::optional<Result<uint64_t>> result;
  if (impl_->one_sided != nullptr) {
    result = impl_->one_sided->Read(key, options.route_key, CopyRequest{.into = {}, .grow = &value},
                                    options);
  }
  if (!result) result = impl_->servers.AskWhole(key, options, &value, nullptr);
  impl_->CountGet(*result);
  if (!result->ok()) return std::move(*result).status();
  return value;
}

Result<ObjectView> Client::GetView(std::string_view key, const GetOptions& options) {
  if (impl_->one_sided != nullptr) {
    auto settled = impl_->one_sided->View({.key = key, .route_key = options.route_key}, options);
    if (settled) {
      impl_->CountGet(settled->ok() ? Result<uint64_t>((*settled)->bytes().size())
                                    : Result<uint64_t>(settled->status()));
      return *std::move(settled);
    }
  }
  std::string copy;
  uint64_t checksum = 0;
  const Result<uint64_t> result = impl_->servers.AskWhole(key, options, &copy, &checksum);
  impl_->CountGet(result);
  if (!result.ok()) return result.status();
  return ObjectView(std::move(copy), checksum);
}

Result<StagingBuffer> Client::AllocateBuffer(uint64_t bytes) {
  EMS_ASSIGN_OR_RETURN(const std::shared_ptr<StagingMemory> memory, impl_->Staging());
  const uint64_t before = memory->made_bytes();
  Result<StagingBuffer> buffer = memory->Allocate(bytes);
  if (impl_->locals != nullptr && memory->made_bytes() != before) impl_->locals->OnStagingChanged();
  return buffer;
}

Status Client::GetRange(std::string_view key, uint64_t offset, MutableBuffers into,
                        const GetOptions& options) {
  const RangeItem item{.key = key, .offset = offset, .into = into, .route_key = options.route_key};
  return impl_->ReadOne(item, options).status();
}

std::vector<Status> Client::MultiGetRange(std::span<const RangeItem> items,
                                          const GetOptions& options) {
  AssumeDram(items);
  const Deadline deadline = impl_->servers.DeadlineFor(options.timeout, RoomOf(items));
  std::vector<Result<uint64_t>> lengths = impl_->ReadMany(
      items, options, deadline, [&](std::span<Result<uint64_t>> into, std::vector<uint32_t>* left) {
        impl_->one_sided->MultiRead(items, options, deadline, into, left);
      });
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
  const Deadline deadline = impl_->servers.DeadlineFor(options.timeout, 0);
  return std::move(impl_->servers.Ask(std::span(&item, 1), options, deadline)[0]);
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
  Batch batch =
      impl_->servers.MakeBatch(Op::kPut, impl_->servers.DeadlineFor(options.timeout, bytes));
  batch.flags = impl_->FlagsOf(options);
  batch.items.reserve(items.size());
  const StagingMemory* const staging = impl_->staging_memory.load(std::memory_order_acquire);
  for (const PutItem& put : items) {
    batch.items.push_back(impl_->servers.MakeItem(put.key, put.route_key));
    BatchItem& item = batch.items.back();
    item.value = put.value;
    if (staging != nullptr && put.value.parts().size() == 1) {
      item.staged_offset = staging->OffsetOf(put.value.parts()[0]);
    }
  }
  StagingBuffer scratch = impl_->StageOrdinary(&batch);
  impl_->servers.Run(&batch);
  impl_->stager.GiveBack(std::move(scratch));
  impl_->counters.Add(kPuts, items.size());
  for (const BatchItem& item : batch.items) {
    if (item.status.ok()) impl_->counters.Add(kBytesWritten, item.value.size_bytes());
  }
  std::vector<Status> statuses = StatusesOf(&batch);
  if (impl_->one_sided != nullptr) impl_->one_sided->Prepare(items, statuses);
  return statuses;
}

std::vector<Result<uint64_t>> Client::MultiGet(std::span<const GetItem> items,
                                               const GetOptions& options) {
  AssumeDram(items);
  const Deadline deadline = impl_->servers.DeadlineFor(options.timeout, RoomOf(items));
  std::vector<Result<uint64_t>> results = impl_->ReadMany(
      items, options, deadline, [&](std::span<Result<uint64_t>> into, std::vector<uint32_t>* left) {
        impl_->one_sided->MultiRead(items, options, deadline, into, left);
      });
  impl_->CountGets(results);
  return results;
}

std::vector<Result<bool>> Client::MultiExists(std::span<const KeyItem> items,
                                              const GetOptions& options) {
  const Deadline deadline = impl_->servers.DeadlineFor(options.timeout, 0);
  std::vector<Result<uint64_t>> lengths = impl_->ReadMany(
      items, options, deadline, [&](std::span<Result<uint64_t>> into, std::vector<uint32_t>* left) {
        impl_->one_sided->MultiLookup(items, options, into, left);
      });
  std::vector<Result<bool>> results;
  results.reserve(items.size());
  for (Result<uint64_t>& length : lengths) results.push_back(IsThere(std::move(length)));
  return results;
}

std::vector<Result<ObjectStat>> Client::MultiStat(std::span<const KeyItem> items,
                                                  const GetOptions& options) {
  Batch batch = impl_->servers.MakeBatch(Op::kExists, items,
                                         impl_->servers.DeadlineFor(options.timeout, 0), &options);
  batch.asks_tier = true;
  impl_->servers.Run(&batch);
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
  const Deadline deadline = impl_->servers.DeadlineFor(options.timeout, 0);
  Batch batch = impl_->servers.MakeBatch(Op::kRemove, items, deadline);
  impl_->servers.Run(&batch);
  return StatusesOf(&batch);
}

void Client::PutAsync(std::string_view key, ConstBuffers value, const PutOptions& options,
                      std::function<void(Status)> done) {
  impl_->RunAsync(options, value.size_bytes(), std::move(done),
                  [this, key = std::string(key), value](const PutOptions& left) {
                    return Put(key, value, left);
                  });
}

void Client::GetAsync(std::string_view key, MutableBuffers into, const GetOptions& options,
                      std::function<void(Result<uint64_t>)> done) {
  impl_->RunAsync(options, into.size_bytes(), std::move(done),
                  [this, key = std::string(key), into](const GetOptions& left) {
                    return Get(key, into, left);
                  });
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

Result<std::string> Client::Ask(const NodeInfo& node, const wire::FrameHeader& header,
                                ConstBytes body, Duration timeout) {
  return impl_->router.Ask(node, header, body, impl_->servers.DeadlineFor(timeout, 0));
}

ClientStats Client::stats() const {
  ClientStats stats;
  impl_->router.AddTo(&stats);
  stats.gets = impl_->counters.Sum(kGets);
  stats.hits = impl_->counters.Sum(kHits);
  stats.puts = impl_->counters.Sum(kPuts);
  stats.bytes_read = impl_->counters.Sum(kBytesRead);
  stats.bytes_written = impl_->counters.Sum(kBytesWritten);
  stats.calls = impl_->latencies.Calls();
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
