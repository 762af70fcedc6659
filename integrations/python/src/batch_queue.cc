#include "integrations/python/src/batch_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <thread>
#include <utility>

#include "integrations/python/src/caller_first.h"

namespace ems::python {
namespace {

constexpr uint64_t kLaneBytesMin = kMiB;  // below it, waking a thread costs more than it brings
constexpr size_t kLanesMax = 16;
constexpr Duration kCallerTimeMax = std::chrono::microseconds(100);

Status TooManyWait() {
  return Error(StatusCode::kResourceExhausted, "too many batches wait for a thread already");
}
Status QueueIsClosed() { return Error(StatusCode::kUnavailable, "the connector is closed"); }

BatchOutcome Failed(size_t names, Status why) {
  return {.id = 0, .done = std::vector<bool>(names, false), .status = std::move(why)};
}

// The parts of each block of a lane.
template <typename Part>
std::vector<std::vector<Part>> PartsOf(const BatchRequest& request, const BatchQueue::Lane& lane) {
  std::vector<std::vector<Part>> blocks(lane.end - lane.begin);
  for (size_t i = lane.begin; i < lane.end; ++i) {
    const size_t first = i == 0 ? 0 : request.part_ends[i - 1];
    blocks[i - lane.begin].assign(
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
                         const BatchRequest& request, const BatchQueue::Lane& lane,
                         Duration timeout) {
  const auto parts = PartsOf<ConstBytes>(request, lane);
  std::vector<ConstBuffers> values;
  values.reserve(parts.size());
  for (const auto& block : parts) values.emplace_back(std::span<const ConstBytes>(block));
  return cache->Save(keys, values, {.timeout = timeout}).blocks;
}

std::vector<Status> Load(context::ContextCache* cache, const std::vector<std::string>& keys,
                         const BatchRequest& request, const BatchQueue::Lane& lane,
                         Duration timeout) {
  const auto parts = PartsOf<MutableBytes>(request, lane);
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

BatchOutcome OutcomeOf(BatchKind kind, const std::vector<Status>& results) {
  BatchOutcome outcome;
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
  fabric::Fd ready(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!ready.valid()) {
    return Error(StatusCode::kResourceExhausted, "no eventfd: {}", fabric::ErrnoText(errno));
  }
  return std::unique_ptr<BatchQueue>(new BatchQueue(std::move(hasher), options, std::move(ready)));
}

BatchQueue::BatchQueue(context::BlockHasher hasher, const BatchQueueOptions& options,
                       fabric::Fd ready)
    : hasher_(std::move(hasher)),
      options_(options),
      ready_(std::move(ready)),
      threads_("ems-seat", std::max<size_t>(1, options.threads), options.waiting_max) {}

BatchQueue::~BatchQueue() { Close(); }

void BatchQueue::Attach(std::shared_ptr<Client> client) {
  owned_pool_ = std::make_unique<Pool>(std::move(client), options_.durability);
  pool_.store(owned_pool_.get(), std::memory_order_release);
}

uint64_t BatchQueue::Enter() {
  auto state = state_.Lock();
  if (state->closing) return 0;
  ++state->unfinished;
  return ++state->ids;
}

void BatchQueue::Leave() {
  auto state = state_.Lock();
  // Under the lock: whoever waits may end the queue as soon as it is let go.
  if (--state->unfinished == 0) idle_.notify_all();
}

bool BatchQueue::IsClosing() {
  auto state = state_.Lock();
  return state->closing;
}

void BatchQueue::Publish(BatchOutcome outcome) {
  {
    auto state = state_.Lock();
    state->over.push_back(std::move(outcome));
  }
  const uint64_t one = 1;
  // It fails only when 2^64 - 2 signals were not read: it is readable then.
  while (::write(ready_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

uint64_t BatchQueue::Submit(BatchRequest request) {
  submitting_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t id = Post(std::move(request));
  submitting_.fetch_sub(1, std::memory_order_relaxed);
  return id;
}

void BatchQueue::LetCallersGo() const {
  const TimePoint until = Clock::System().Now() + kCallerTimeMax;
  while (submitting_.load(std::memory_order_relaxed) > 0 && Clock::System().Now() < until) {
    std::this_thread::yield();  // on the caller's core it goes on, on another one this is a look
  }
}

uint64_t BatchQueue::Post(BatchRequest request) {
  const uint64_t id = Enter();
  if (id == 0) return Fail(request.names.size(), QueueIsClosed());
  auto batch = std::make_shared<Batch>();
  batch->id = id;
  batch->deadline = Deadline::After(options_.timeout);
  batch->results.resize(request.names.size());
  batch->request = std::move(request);
  const bool queued = threads_.TrySubmit([this, batch] {
    YieldToCallers();
    LetCallersGo();
    Begin(batch);
  });
  if (!queued) {
    BatchOutcome outcome = Failed(batch->results.size(), TooManyWait());
    outcome.id = id;
    Publish(std::move(outcome));
    Leave();
  }
  return id;
}

void BatchQueue::Begin(const std::shared_ptr<Batch>& batch) {
  uint64_t bytes = 0;
  for (const MutableBytes part : batch->request.parts) bytes += part.size();
  const size_t count = batch->request.names.size();
  const size_t lanes = std::clamp<size_t>(
      std::min({bytes / kLaneBytesMin, uint64_t{count}, uint64_t{options_.lanes}}), 1, kLanesMax);
  batch->lanes = batch->lanes_left = lanes;
  for (size_t i = 1; i < lanes; ++i) {
    // Nobody free, or not in time: the batch's own thread does it all.
    (void)threads_.TrySubmit([this, batch] {
      YieldToCallers();
      RunLanes(batch.get());
    });
  }
  RunLanes(batch.get());
}

void BatchQueue::RunLanes(Batch* batch) {
  const size_t count = batch->request.names.size();
  while (true) {
    const size_t i = batch->next_lane.fetch_add(1, std::memory_order_relaxed);
    if (i >= batch->lanes) return;
    const Lane lane{.begin = count * i / batch->lanes, .end = count * (i + 1) / batch->lanes};
    RunUntil(batch->request, lane, batch->deadline, batch->results);
    // Release: what this lane wrote; acquire: what the others did.
    if (batch->lanes_left.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    BatchOutcome outcome = OutcomeOf(batch->request.kind, batch->results);
    outcome.id = batch->id;
    Publish(std::move(outcome));
    Leave();
  }
}

uint64_t BatchQueue::Fail(size_t names, Status why) {
  BatchOutcome outcome = Failed(names, std::move(why));
  {
    auto state = state_.Lock();
    outcome.id = ++state->ids;
  }
  const uint64_t id = outcome.id;
  Publish(std::move(outcome));
  return id;
}

BatchOutcome BatchQueue::Run(const BatchRequest& request) {
  const size_t count = request.names.size();
  if (Enter() == 0) return Failed(count, QueueIsClosed());
  std::vector<Status> results(count);
  RunUntil(request, {.begin = 0, .end = count}, Deadline::After(options_.timeout), results);
  Leave();
  return OutcomeOf(request.kind, results);
}

std::vector<BatchOutcome> BatchQueue::Drain() {
  // Reset first, look afterwards: what comes in between signals again.
  uint64_t signals = 0;
  while (::read(ready_.get(), &signals, sizeof(signals)) < 0 && errno == EINTR) {
  }
  auto state = state_.Lock();
  return std::exchange(state->over, {});
}

void BatchQueue::Close() {
  auto state = state_.Lock();
  state->closing = true;
  state.Wait(idle_, [](const State& now) { return now.unfinished == 0; });
}

void BatchQueue::RunUntil(const BatchRequest& request, Lane lane, Deadline deadline,
                          std::span<Status> results) {
  const std::span<Status> mine = results.subspan(lane.begin, lane.end - lane.begin);
  const auto refuse = [mine](const Status& why) { std::fill(mine.begin(), mine.end(), why); };
  if (mine.empty()) return;
  if (IsClosing()) return refuse(QueueIsClosed());
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
  const auto keys = KeysOf(request, lane);
  if (!keys.ok()) return refuse(keys.status());
  std::vector<Status> got = Carry(pool, request, lane, *keys, left);
  if (std::all_of(got.begin(), got.end(), IsOutage)) {
    pool->breaker.OnOutage(*keys);
  } else {
    pool->breaker.OnAnswer();
  }
  std::move(got.begin(), got.end(), mine.begin());
}

Result<std::vector<std::string>> BatchQueue::KeysOf(const BatchRequest& request, Lane lane) const {
  const auto begin = request.names.begin() + static_cast<ptrdiff_t>(lane.begin);
  const auto end = request.names.begin() + static_cast<ptrdiff_t>(lane.end);
  if (request.hashed) return std::vector<std::string>(begin, end);
  const std::vector<std::string_view> names(begin, end);
  return hasher_.OwnKeys(names);
}

std::vector<Status> BatchQueue::Carry(Pool* pool, const BatchRequest& request, Lane lane,
                                      const std::vector<std::string>& keys, Duration timeout) {
  switch (request.kind) {
    case BatchKind::kSet:
      return Save(&pool->cache, keys, request, lane, timeout);
    case BatchKind::kGet:
      return Load(&pool->cache, keys, request, lane, timeout);
    case BatchKind::kExists:
      return Look(pool->client.get(), keys, timeout);
    case BatchKind::kRemove:
      return pool->client->MultiRemove(ItemsOf(keys), {.timeout = timeout});
  }
  return std::vector<Status>(keys.size(), Error(StatusCode::kInternal, "no such kind of batch"));
}

}  // namespace ems::python
