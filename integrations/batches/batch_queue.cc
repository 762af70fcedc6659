#include "integrations/batches/batch_queue.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/check.h"

namespace ems::batches {
namespace {

constexpr uint64_t kShardBytesMin = kMiB;  // below it, waking a thread costs more than it brings
constexpr size_t kShardsMax = 16;

Status TooManyWait() {
  return Error(StatusCode::kResourceExhausted, "too many batches wait for a thread already");
}
Status QueueIsClosed() { return Error(StatusCode::kUnavailable, "the connector is closed"); }

BatchOutcome Failed(uint64_t id, size_t names, Status why) {
  return {.id = id, .done = std::vector<bool>(names, false), .status = std::move(why)};
}

// The parts of each block of a shard.
template <typename Part>
std::vector<std::vector<Part>> PartsOf(const BatchRequest& request,
                                       const BatchQueue::Shard& shard) {
  EMS_CHECK(request.part_ends.size() == request.names.size(), "{} names and memory for {}",
            request.names.size(), request.part_ends.size());
  std::vector<std::vector<Part>> blocks(shard.end - shard.begin);
  for (size_t i = shard.begin; i < shard.end; ++i) {
    const size_t first = i == 0 ? 0 : request.part_ends[i - 1];
    EMS_CHECK(first <= request.part_ends[i] && request.part_ends[i] <= request.parts.size(),
              "parts [{}, {}) of {}", first, request.part_ends[i], request.parts.size());
    blocks[i - shard.begin].assign(
        request.parts.begin() + static_cast<ptrdiff_t>(first),
        request.parts.begin() + static_cast<ptrdiff_t>(request.part_ends[i]));
  }
  return blocks;
}

std::vector<KeyItem> ItemsOf(const std::vector<std::string>& keys) {
  std::vector<KeyItem> items(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) items[i].key = keys[i];
  return items;
}

std::vector<Status> Save(context::ContextCache* cache, const std::vector<std::string>& keys,
                         const BatchRequest& request, const BatchQueue::Shard& shard,
                         Duration timeout) {
  const auto parts = PartsOf<ConstBytes>(request, shard);
  std::vector<ConstBuffers> values;
  values.reserve(parts.size());
  for (const auto& block : parts) values.emplace_back(std::span<const ConstBytes>(block));
  return cache->Save(keys, values, {.timeout = timeout}).blocks;
}

std::vector<Status> Load(context::ContextCache* cache, const std::vector<std::string>& keys,
                         const BatchRequest& request, const BatchQueue::Shard& shard,
                         Duration timeout) {
  const auto parts = PartsOf<MutableBytes>(request, shard);
  std::vector<MutableBuffers> into;
  into.reserve(parts.size());
  for (const auto& block : parts) into.emplace_back(std::span<const MutableBytes>(block));
  std::vector<Status> results;
  results.reserve(keys.size());
  for (auto& block : cache->Load(keys, into, {.timeout = timeout}).blocks) {
    results.push_back(std::move(block).status());
  }
  return results;
}

std::vector<Status> Look(Client* client, const std::vector<std::string>& keys, Duration timeout) {
  std::vector<Status> results;
  results.reserve(keys.size());
  for (auto& there : client->MultiExists(ItemsOf(keys), {.timeout = timeout})) {
    results.push_back(there.ok() && !*there ? Miss() : std::move(there).status());
  }
  return results;
}

bool IsFailure(const Status& status) {
  return !status.ok() && status.code() != StatusCode::kNotFound;
}

BatchOutcome OutcomeOf(uint64_t id, BatchKind kind, const std::vector<Status>& results) {
  BatchOutcome outcome;
  outcome.id = id;
  outcome.done.reserve(results.size());
  for (const Status& result : results) outcome.done.push_back(result.ok());
  const auto done = std::count(outcome.done.begin(), outcome.done.end(), true);
  const auto failed = std::find_if(results.begin(), results.end(), IsFailure);
  if (kind == BatchKind::kSet || kind == BatchKind::kGet) {
    if (failed != results.end()) {
      outcome.status = *failed;
    } else if (std::cmp_less(done, results.size())) {
      outcome.status = Error(StatusCode::kNotFound, "{} of {} blocks are not there",
                             results.size() - static_cast<size_t>(done), results.size());
    }
  } else if (!results.empty() && std::all_of(results.begin(), results.end(), IsFailure)) {
    outcome.status = *failed;
  }
  return outcome;
}

}  // namespace

Result<std::unique_ptr<BatchQueue>> BatchQueue::Open(context::BlockHasher hasher,
                                                     const BatchQueueOptions& options) {
  EMS_ASSIGN_OR_RETURN(DoneSignal ready, DoneSignal::Open());
  return std::unique_ptr<BatchQueue>(new BatchQueue(std::move(hasher), options, std::move(ready)));
}

BatchQueue::BatchQueue(context::BlockHasher hasher, const BatchQueueOptions& options,
                       DoneSignal ready)
    : hasher_(std::move(hasher)),
      options_(options),
      ready_(std::move(ready)),
      gate_(QueueIsClosed()),
      threads_("ems-conn", std::max<size_t>(1, options.threads), options.waiting_max,
               OnWake::kWait) {
  EMS_CHECK(options.timeout > Duration::zero(), "no batch could be done in no time");
}

BatchQueue::~BatchQueue() { Close(); }

void BatchQueue::Attach(std::shared_ptr<Client> client) {
  EMS_CHECK(owned_pool_ == nullptr, "a queue has one client");
  owned_pool_ = std::make_unique<Pool>(std::move(client), options_.durability);
  pool_.store(owned_pool_.get(), std::memory_order_release);
}

uint64_t BatchQueue::NextId() {
  auto state = state_.Lock();
  return ++state->ids;
}

void BatchQueue::Publish(BatchOutcome outcome) {
  {
    auto state = state_.Lock();
    state->over.push_back(std::move(outcome));
  }
  ready_.Set();
}

uint64_t BatchQueue::Submit(BatchRequest request) {
  const Callers::Stay stay(&callers_);
  return Post(std::move(request));
}

uint64_t BatchQueue::Post(BatchRequest request) {
  const size_t count = request.names.size();
  auto batch = std::make_shared<Batch>();
  const uint64_t id = batch->id = NextId();
  batch->results.resize(count);
  batch->request = std::move(request);
  const auto call = std::make_shared<Call>(
      Deadline::After(options_.timeout), &gate_,
      [id, count](const Status& why) { return Failed(id, count, why); },
      [this](const BatchOutcome& outcome) { Publish(outcome); });
  const auto threads = [this](std::function<void()>&& work) {
    return threads_.TrySubmit(std::move(work));
  };
  Call::Submit(call, threads, TooManyWait(), [this, batch](const std::shared_ptr<Call>& mine) {
    batch->call = mine;
    YieldToCallers();
    callers_.LetGo();
    Begin(batch);
  });
  return id;
}

void BatchQueue::Begin(const std::shared_ptr<Batch>& batch) {
  uint64_t bytes = 0;
  for (const MutableBytes part : batch->request.parts) bytes += part.size();
  const size_t count = batch->request.names.size();
  const size_t shards = std::clamp<size_t>(
      std::min({bytes / kShardBytesMin, uint64_t{count}, uint64_t{options_.lanes}}), 1, kShardsMax);
  batch->shards = batch->shards_left = shards;
  for (size_t i = 1; i < shards; ++i) {
    // Nobody free, or not in time: the batch's own thread does it all.
    (void)threads_.TrySubmit([this, batch] {
      YieldToCallers();
      RunShards(batch.get());
    });
  }
  RunShards(batch.get());
}

void BatchQueue::RunShards(Batch* batch) {
  const size_t count = batch->request.names.size();
  while (true) {
    const size_t i = batch->next_shard.fetch_add(1, std::memory_order_relaxed);
    if (i >= batch->shards) return;
    const Shard shard{.begin = count * i / batch->shards, .end = count * (i + 1) / batch->shards};
    RunUntil(batch->request, shard, batch->call->deadline(), batch->results);
    // Release: what this shard wrote; acquire: what the others did.
    if (batch->shards_left.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    batch->call->Finish(OutcomeOf(batch->id, batch->request.kind, batch->results));
  }
}

uint64_t BatchQueue::Fail(size_t names, Status why) {
  const uint64_t id = NextId();
  Publish(Failed(id, names, std::move(why)));
  return id;
}

BatchOutcome BatchQueue::Run(const BatchRequest& request) {
  const size_t count = request.names.size();
  const CallPass pass(&gate_);
  if (!pass.is_open()) return Failed(0, count, gate_.closed());
  std::vector<Status> results(count);
  RunUntil(request, {.begin = 0, .end = count}, Deadline::After(options_.timeout), results);
  return OutcomeOf(0, request.kind, results);
}

std::vector<BatchOutcome> BatchQueue::Drain() {
  ready_.Reset();
  auto state = state_.Lock();
  return std::exchange(state->over, {});
}

void BatchQueue::Close() { gate_.Close(); }

void BatchQueue::RunUntil(const BatchRequest& request, Shard shard, Deadline deadline,
                          std::span<Status> results) {
  const std::span<Status> mine = results.subspan(shard.begin, shard.end - shard.begin);
  const auto refuse = [mine](const Status& why) { std::fill(mine.begin(), mine.end(), why); };
  if (mine.empty()) return;
  const Duration left = deadline.Remaining();
  if (left == Duration::zero()) {
    return refuse(Error(StatusCode::kDeadlineExceeded,
                        "the batch of {} blocks waited for a thread too long", results.size()));
  }
  Pool* const pool = pool_.load(std::memory_order_acquire);
  if (pool == nullptr) {
    return refuse(Error(StatusCode::kUnavailable, "not connected to the pool yet"));
  }
  if (!pool->breaker.Allow()) {
    return refuse(Error(StatusCode::kUnavailable,
                        "no server has answered lately: asked again within a second"));
  }
  const auto keys = KeysOf(request, shard);
  if (!keys.ok()) return refuse(keys.status());
  std::vector<Status> got = Carry(pool, request, shard, *keys, left);
  EMS_CHECK(got.size() == mine.size(), "{} results of {} names", got.size(), mine.size());
  (void)pool->breaker.Judge(got, *keys);
  std::move(got.begin(), got.end(), mine.begin());
}

Result<std::vector<std::string>> BatchQueue::KeysOf(const BatchRequest& request,
                                                    Shard shard) const {
  const auto begin = request.names.begin() + static_cast<ptrdiff_t>(shard.begin);
  const auto end = request.names.begin() + static_cast<ptrdiff_t>(shard.end);
  if (request.hashed) return std::vector<std::string>(begin, end);
  const std::vector<std::string_view> names(begin, end);
  return hasher_.OwnKeys(names);
}

std::vector<Status> BatchQueue::Carry(Pool* pool, const BatchRequest& request, Shard shard,
                                      const std::vector<std::string>& keys, Duration timeout) {
  switch (request.kind) {
    case BatchKind::kSet:
      return Save(&pool->cache, keys, request, shard, timeout);
    case BatchKind::kGet:
      return Load(&pool->cache, keys, request, shard, timeout);
    case BatchKind::kExists:
      return Look(pool->client.get(), keys, timeout);
    case BatchKind::kRemove:
      return pool->client->MultiRemove(ItemsOf(keys), {.timeout = timeout});
  }
  return std::vector<Status>(keys.size(), Error(StatusCode::kInternal, "no such kind of batch"));
}

}  // namespace ems::batches
