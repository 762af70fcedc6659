#include "mp_sdk/client.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "common/logging.h"
#include "common/object_key.h"
#include "common/thread_pool.h"
#include "mp_controller/view/controller_client.h"
#include "mp_sdk/internal/router.h"

namespace ems {
namespace {

using internal::Batch;
using internal::BatchItem;
using wire::Op;

constexpr uint64_t kDefaultBytesPerSecond = 100'000'000;
constexpr Duration kTimeoutMax = std::chrono::seconds(30);

Status TimeIsOver() {
  return Error(StatusCode::kDeadlineExceeded, "the call's time passed while it was queued");
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
    const Duration transfer(bytes * 1'000'000'000 / kDefaultBytesPerSecond);
    return Deadline::After(std::min(options.op_timeout + transfer, kTimeoutMax));
  }
  BatchItem MakeItem(std::string_view key, std::string_view route_key) const {
    BatchItem item;
    item.key = key;
    item.slot = SlotOf(ns.ref.id, route_key.empty() ? key : route_key);
    return item;
  }
  Batch MakeBatch(Op op, Duration timeout, uint64_t bytes) const {
    return Batch{
        .op = op, .flags = 0, .ns = ns.ref, .deadline = DeadlineFor(timeout, bytes), .items = {}};
  }
  // Finishes items whose key is not a key, runs the rest.
  void Run(Batch* batch);
  uint16_t FlagsOf(const PutOptions& put) const;
  void CountGets(const Batch& batch);

  const ClientOptions options;
  NamespaceInfo ns;  // constant after Connect
  ViewCache views;
  ControllerClient controller;
  internal::Router router;
  std::atomic<uint64_t> gets{0}, hits{0}, puts{0}, bytes_read{0}, bytes_written{0};
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

void Client::Impl::CountGets(const Batch& batch) {
  uint64_t hit = 0;
  uint64_t bytes = 0;
  for (const BatchItem& item : batch.items) {
    if (!item.status.ok()) continue;
    ++hit;
    bytes += item.value_bytes;
  }
  gets.fetch_add(batch.items.size(), std::memory_order_relaxed);
  hits.fetch_add(hit, std::memory_order_relaxed);
  bytes_read.fetch_add(bytes, std::memory_order_relaxed);
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  const Deadline deadline = Deadline::After(options.start_timeout);
  EMS_ASSIGN_OR_RETURN(impl->ns, impl->controller.GetNamespace(options.name_space, deadline));
  impl->controller.StartWatch(&impl->views, {});
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
  const GetItem item{.key = key, .into = into, .route_key = options.route_key};
  return std::move(MultiGet(std::span(&item, 1), options)[0]);
}

Result<std::string> Client::Get(std::string_view key, const GetOptions& options) {
  Batch batch = impl_->MakeBatch(Op::kGet, options.timeout, wire::kValueBytesLimit / 16);
  if (!options.touch) batch.flags |= wire::kFlagNoTouch;
  std::string value;
  batch.items.push_back(impl_->MakeItem(key, options.route_key));
  batch.items[0].grow = &value;
  impl_->Run(&batch);
  impl_->CountGets(batch);
  if (!batch.items[0].status.ok()) return batch.items[0].status;
  return value;
}

Status Client::GetRange(std::string_view key, uint64_t offset, MutableBuffers into,
                        const GetOptions& options) {
  Batch batch = impl_->MakeBatch(Op::kGetRange, options.timeout, into.size_bytes());
  if (!options.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.push_back(impl_->MakeItem(key, options.route_key));
  batch.items[0].into = into;
  batch.items[0].offset = offset;
  impl_->Run(&batch);
  impl_->CountGets(batch);
  return std::move(batch.items[0].status);
}

Result<uint64_t> Client::Stat(std::string_view key, const GetOptions& options) {
  Batch batch = impl_->MakeBatch(Op::kExists, options.timeout, 0);
  if (!options.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.push_back(impl_->MakeItem(key, options.route_key));
  impl_->Run(&batch);
  if (!batch.items[0].status.ok()) return std::move(batch.items[0].status);
  return batch.items[0].value_bytes;
}

Result<bool> Client::Exists(std::string_view key, const GetOptions& options) {
  const KeyItem item{.key = key, .route_key = options.route_key};
  return std::move(MultiExists(std::span(&item, 1), options)[0]);
}

Status Client::Remove(std::string_view key, const GetOptions& options) {
  const KeyItem item{.key = key, .route_key = options.route_key};
  return std::move(MultiRemove(std::span(&item, 1), options)[0]);
}

std::vector<Status> Client::MultiPut(std::span<const PutItem> items, const PutOptions& options) {
  const uint64_t bytes =
      std::accumulate(items.begin(), items.end(), uint64_t{0},
                      [](uint64_t sum, const PutItem& i) { return sum + i.value.size_bytes(); });
  Batch batch = impl_->MakeBatch(Op::kPut, options.timeout, bytes);
  batch.flags = impl_->FlagsOf(options);
  batch.items.reserve(items.size());
  for (const PutItem& put : items) {
    batch.items.push_back(impl_->MakeItem(put.key, put.route_key));
    batch.items.back().value = put.value;
  }
  impl_->Run(&batch);
  impl_->puts.fetch_add(items.size(), std::memory_order_relaxed);
  std::vector<Status> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) {
    if (item.status.ok())
      impl_->bytes_written.fetch_add(item.value.size_bytes(), std::memory_order_relaxed);
    results.push_back(std::move(item.status));
  }
  return results;
}

std::vector<Result<uint64_t>> Client::MultiGet(std::span<const GetItem> items,
                                               const GetOptions& options) {
  const uint64_t bytes =
      std::accumulate(items.begin(), items.end(), uint64_t{0},
                      [](uint64_t sum, const GetItem& i) { return sum + i.into.size_bytes(); });
  Batch batch = impl_->MakeBatch(Op::kGet, options.timeout, bytes);
  if (!options.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.reserve(items.size());
  for (const GetItem& get : items) {
    batch.items.push_back(impl_->MakeItem(get.key, get.route_key));
    batch.items.back().into = get.into;
  }
  impl_->Run(&batch);
  impl_->CountGets(batch);
  std::vector<Result<uint64_t>> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) {
    if (item.status.ok()) {
      results.emplace_back(item.value_bytes);
    } else {
      results.emplace_back(std::move(item.status));
    }
  }
  return results;
}

std::vector<Result<bool>> Client::MultiExists(std::span<const KeyItem> items,
                                              const GetOptions& options) {
  Batch batch = impl_->MakeBatch(Op::kExists, options.timeout, 0);
  if (!options.touch) batch.flags |= wire::kFlagNoTouch;
  batch.items.reserve(items.size());
  for (const KeyItem& item : items)
    batch.items.push_back(impl_->MakeItem(item.key, item.route_key));
  impl_->Run(&batch);
  std::vector<Result<bool>> results;
  results.reserve(items.size());
  for (BatchItem& item : batch.items) {
    if (item.status.ok()) {
      results.emplace_back(true);
    } else if (item.status.code() == StatusCode::kNotFound) {
      results.emplace_back(false);
    } else {
      results.emplace_back(std::move(item.status));
    }
  }
  return results;
}

std::vector<Status> Client::MultiRemove(std::span<const KeyItem> items, const GetOptions& options) {
  Batch batch = impl_->MakeBatch(Op::kRemove, options.timeout, 0);
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
  stats.gets = impl_->gets.load(std::memory_order_relaxed);
  stats.hits = impl_->hits.load(std::memory_order_relaxed);
  stats.puts = impl_->puts.load(std::memory_order_relaxed);
  stats.bytes_read = impl_->bytes_read.load(std::memory_order_relaxed);
  stats.bytes_written = impl_->bytes_written.load(std::memory_order_relaxed);
  stats.retries = router.retries.load(std::memory_order_relaxed);
  stats.wrong_owner = router.wrong_owner.load(std::memory_order_relaxed);
  stats.breaker_opened = router.breaker_opened.load(std::memory_order_relaxed);
  stats.checksum_mismatches = router.checksum_mismatches.load(std::memory_order_relaxed);
  return stats;
}

ViewCache& Client::views() { return impl_->views; }
NamespaceInfo Client::name_space() const { return impl_->ns; }

}  // namespace ems
