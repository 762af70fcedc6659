#include "pdc/prefill/prefill_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "pdc/engine/generation.h"
#include "pdc/scheduling/prefill_scheduler.h"

namespace ems::pdc {
namespace {

// How soon a task is noticed whose time has passed while it was waiting.
constexpr Duration kSweepEvery = std::chrono::milliseconds(50);

// In tokens of work: those that are computed, and what attending to the others costs.
double CostOf(const Request& request) {
  constexpr double kContextShare = 0.05;
  return static_cast<double>(request.new_tokens()) +
         kContextShare * static_cast<double>(request.cached_tokens);
}

Status CheckOptions(const PrefillWorkerOptions& options) {
  for (const auto& [name, value] :
       {std::pair("groups", options.groups), std::pair("loaders", options.loaders)}) {
    if (value < 1 || value > 64)
      return Error(StatusCode::kInvalidArgument, "{} is {}: 1 to 64", name, value);
  }
  if (options.queue_max == 0 || options.step_tokens_max == 0)
    return Error(StatusCode::kInvalidArgument, "queue_max and step_tokens_max are at least 1");
  return OkStatus();
}

Status TimeIsOver() { return Error(StatusCode::kDeadlineExceeded, "the prompt's time is over"); }

}  // namespace

struct PrefillWorker::Impl {
  enum class Phase : uint8_t { kQueued, kLoading, kWaiting, kComputing, kDone, kHandedOver };
  // Of one thread at a time: while loading, computing or handing over of the one that does it.
  struct Task {
    Task(PrefillTask spec_in, OnDone done_in, KvArena* arena, const GenerationOptions& options)
        : spec(std::move(spec_in)),
          done(std::move(done_in)),
          generation(KvSequence(arena), spec.prompt, options) {}
    PrefillTask spec;
    OnDone done;
    Generation generation;
    PrefillOutcome outcome;
    StopFlag stop;
    TimePoint came = Clock::System().Now();
    // Under the lock:
    uint64_t order = 0;  // of coming
    Phase phase = Phase::kQueued;
    bool cancelled = false;
  };
  using TaskPtr = std::shared_ptr<Task>;
  struct State {
    explicit State(const PrefillSchedulerOptions& options) : scheduler(options, CostOf) {}
    std::unordered_map<uint64_t, TaskPtr> tasks;
    std::deque<TaskPtr> queued;  // for loaders
    PrefillScheduler scheduler;
    std::vector<std::vector<TaskPtr>> step;  // by group, what it is to compute
    uint32_t groups_busy = 0;
    PrefillWorkerStats stats;
    uint64_t orders = 0;
    std::set<uint64_t> roomless;  // orders of tasks that loaders have and that wait for KV blocks
    uint64_t freed = 0;           // times that there was more room, or one less who waits for it
    bool stopping = false;
  };

  Impl(std::shared_ptr<const Model> model_in, std::unique_ptr<KvArena> arena_in,
       const PrefillWorkerOptions& options_in)
      : options(options_in),
        model(std::move(model_in)),
        arena(std::move(arena_in)),
        state(std::in_place,
              PrefillSchedulerOptions{
                  .groups = static_cast<int>(options.groups),
                  .new_tokens_max = options.step_tokens_max,
                  .context_tokens_max = uint64_t{arena->pool().blocks()} * arena->block_tokens(),
                  .queue_max = options.queue_max}) {
    auto locked = state.Lock();
    locked->step.resize(options.groups);
  }

  void LoadLoop();
  void Load(const TaskPtr& task);
  // Waits for the task's KV blocks. False: it has ended meanwhile.
  bool TakeRoom(const TaskPtr& task);
  void ComputeLoop(uint32_t group, Engine* engine);
  void Compute(Engine* engine, const TaskPtr& task);
  // Deals out the next step when all groups are done with the last one.
  void BeginStep(State* locked);
  void Sweep();
  static bool Seize(State* locked, const TaskPtr& task);
  // The end of a task that holds nothing then.
  void Fail(const TaskPtr& task, const Status& why);
  bool Forget(State* locked, const TaskPtr& task);

  const PrefillWorkerOptions options;
  const std::shared_ptr<const Model> model;
  const std::unique_ptr<KvArena> arena;
  std::unique_ptr<PrefixCache> cache;  // may be null
  std::vector<std::unique_ptr<Engine>> engines;
  Guarded<State> state;
  std::condition_variable work, room, quiet;
  std::atomic<uint64_t> ids{0}, ticks{0};
  std::vector<Thread> threads;
};

// --- Loaders.

void PrefillWorker::Impl::LoadLoop() {
  while (true) {
    TaskPtr task;
    {
      auto locked = state.Lock();
      locked.WaitFor(work, kSweepEvery,
                     [](const State& s) { return s.stopping || !s.queued.empty(); });
      if (locked->stopping) return;
      if (!locked->queued.empty()) {
        task = std::move(locked->queued.front());
        locked->queued.pop_front();
        task->phase = Phase::kLoading;
        locked->roomless.insert(task->order);
      }
    }
    if (task != nullptr) Load(task);
    Sweep();
  }
}

bool PrefillWorker::Impl::TakeRoom(const TaskPtr& task) {
  const PrefillTask& spec = task->spec;
  while (true) {
    const bool stop = task->stop.IsSet();
    if (stop || spec.deadline.Passed()) {
      Fail(task, stop ? Error(StatusCode::kCancelled, "cancelled") : TimeIsOver());
      return false;
    }
    uint64_t freed = 0;
    bool oldest = false;
    {
      auto locked = state.Lock();
      freed = locked->freed;
      EMS_CHECK(locked->roomless.contains(task->order), "prompt {} waits for no room", spec.id);
      oldest = *locked->roomless.begin() == task->order;
    }
    // One after the other: small ones that pass would keep a large one out for ever.
    if (oldest && task->generation.kv().Reserve(static_cast<uint32_t>(spec.prompt.size())).ok()) {
      auto locked = state.Lock();
      locked->roomless.erase(task->order);
      ++locked->freed;
      room.notify_all();
      return true;
    }
    {
      auto locked = state.Lock();
      locked.WaitFor(room, kSweepEvery,
                     [freed](const State& s) { return s.stopping || s.freed != freed; });
    }
    Sweep();
  }
}

void PrefillWorker::Impl::Load(const TaskPtr& task) {
  if (!TakeRoom(task)) return;
  const PrefillTask& spec = task->spec;
  const TimePoint begin = Clock::System().Now();
  if (cache != nullptr) {
    const auto hit = cache->Load(
        spec.prompt, spec.cache_salt, &task->generation.kv(),
        {.timeout = std::min<Duration>(spec.deadline.Remaining(), options.cache.timeout),
         .cancelled = [&task] { return task->stop.IsSet(); }});
    if (!hit.ok()) return Fail(task, hit.status());
    task->outcome.cached_tokens = hit->cached_tokens;
  }
  const TimePoint now = Clock::System().Now();
  task->outcome.waiting = begin - task->came;
  task->outcome.loading = now - begin;
  Status queued;
  {
    auto locked = state.Lock();
    if (task->cancelled) {  // it gives its KV blocks back now, not when its turn comes
      queued = Error(StatusCode::kCancelled, "cancelled");
    } else {
      task->phase = Phase::kWaiting;
      queued = locked->scheduler.Enqueue({.id = spec.id,
                                          .input_tokens = spec.prompt.size(),
                                          .cached_tokens = task->outcome.cached_tokens});
    }
  }
  if (!queued.ok()) return Fail(task, queued);
  work.notify_all();
}

// --- Groups.

void PrefillWorker::Impl::BeginStep(State* locked) {
  EMS_CHECK(locked->groups_busy == 0, "{} groups are at the last step", locked->groups_busy);
  auto lists = locked->scheduler.NextStep();
  for (size_t group = 0; group < lists.size(); ++group) {
    for (const Request& request : lists[group]) {
      const TaskPtr& task = locked->tasks.at(request.id);
      task->phase = Phase::kComputing;
      locked->step[group].push_back(task);
    }
    locked->groups_busy += lists[group].empty() ? 0 : 1;
  }
}

void PrefillWorker::Impl::ComputeLoop(uint32_t group, Engine* engine) {
  while (true) {
    std::vector<TaskPtr> mine;
    {
      auto locked = state.Lock();
      locked.Wait(work, [&](const State& s) {
        return s.stopping || !s.step[group].empty() ||
               (s.groups_busy == 0 && s.scheduler.queued() > 0);
      });
      if (locked->stopping) return;
      if (locked->step[group].empty()) {
        BeginStep(&*locked);
        locked.Unlock();
        work.notify_all();
        continue;
      }
      mine.swap(locked->step[group]);
    }
    for (const TaskPtr& task : mine) Compute(engine, task);
    {
      auto locked = state.Lock();
      EMS_CHECK(locked->groups_busy > 0, "group {} has ended its step twice", group);
      --locked->groups_busy;
      ++locked->stats.steps;
    }
    work.notify_all();
  }
}

void PrefillWorker::Impl::Compute(Engine* engine, const TaskPtr& task) {
  const PrefillTask& spec = task->spec;
  const TimePoint begin = Clock::System().Now();
  task->outcome.waiting = begin - task->came - task->outcome.loading;
  const Status computed =
      Prefill(engine, &task->generation,
              {.deadline = spec.deadline, .stop = &task->stop, .steps_done = &ticks});
  if (!computed.ok()) return Fail(task, computed);
  task->outcome.computing = Clock::System().Now() - begin;
  task->outcome.first = task->generation.answer().front();
  task->outcome.draft = task->generation.draft();
  task->outcome.prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
  if (cache != nullptr) {
    cache->Save(spec.prompt, spec.cache_salt, task->generation.kv(), task->outcome.cached_tokens,
                context::SavePhase::kPrefill);
  }
  const PrefillOutcome outcome = task->outcome;
  OnDone done;
  {
    auto locked = state.Lock();
    locked->stats.prompt_tokens += outcome.prompt_tokens;
    locked->stats.cached_tokens += outcome.cached_tokens;
    if (!task->cancelled) {
      done = std::exchange(task->done, nullptr);
      task->phase = Phase::kDone;  // from here on others may take it
    }
  }
  if (done == nullptr) return Fail(task, Error(StatusCode::kCancelled, "cancelled"));
  done(outcome);
}

// --- Ends.

bool PrefillWorker::Impl::Forget(State* locked, const TaskPtr& task) {
  locked->roomless.erase(task->order);
  const auto found = locked->tasks.find(task->spec.id);
  if (found == locked->tasks.end() || found->second != task) return false;
  locked->tasks.erase(found);
  return true;
}

void PrefillWorker::Impl::Fail(const TaskPtr& task, const Status& why) {
  task->generation.kv().Clear();
  const OnDone done = std::exchange(task->done, nullptr);
  {
    auto locked = state.Lock();
    Forget(&*locked, task);
    ++locked->freed;
    if (done != nullptr)
      ++(why.code() == StatusCode::kCancelled ? locked->stats.cancelled : locked->stats.failed);
  }
  room.notify_all();
  quiet.notify_all();
  if (done != nullptr) done(why);
}

// True: it was in nobody's hands, and is in the caller's now.
bool PrefillWorker::Impl::Seize(State* locked, const TaskPtr& task) {
  if (task->phase != Phase::kQueued && task->phase != Phase::kWaiting &&
      task->phase != Phase::kDone)
    return false;
  std::erase(locked->queued, task);
  (void)locked->scheduler.Cancel(task->spec.id);
  task->phase = Phase::kComputing;
  return true;
}

// Tasks whose time passed where nobody looks at them.
void PrefillWorker::Impl::Sweep() {
  std::vector<TaskPtr> late;
  {
    auto locked = state.Lock();
    for (const auto& [id, task] : locked->tasks) {
      if (task->spec.deadline.Passed() && Seize(&*locked, task)) late.push_back(task);
    }
  }
  for (const TaskPtr& task : late) Fail(task, TimeIsOver());
}

// --- The door.

Result<std::unique_ptr<PrefillWorker>> PrefillWorker::Create(std::shared_ptr<const Model> model,
                                                             MutableBytes memory,
                                                             context::BlockStore* store,
                                                             const PrefillWorkerOptions& options) {
  EMS_RETURN_IF_ERROR(CheckOptions(options));
  EMS_ASSIGN_OR_RETURN(auto arena, KvArena::Create(model->config(), options.kv, memory));
  auto impl = std::make_unique<Impl>(model, std::move(arena), options);
  if (store != nullptr) {
    EMS_ASSIGN_OR_RETURN(impl->cache,
                         PrefixCache::Create(store, impl->arena.get(), *model, options.cache));
  }
  for (uint32_t i = 0; i < options.groups; ++i) {
    EMS_ASSIGN_OR_RETURN(auto engine, Engine::Create(model, options.engine));
    impl->engines.push_back(std::move(engine));
  }
  Impl* const parts = impl.get();
  for (uint32_t i = 0; i < options.loaders; ++i)
    parts->threads.emplace_back(fmt::format("ems-pload-{}", i), [parts] { parts->LoadLoop(); });
  for (uint32_t i = 0; i < options.groups; ++i) {
    parts->threads.emplace_back(fmt::format("ems-prefill-{}", i),
                                [parts, i] { parts->ComputeLoop(i, parts->engines[i].get()); });
  }
  return std::unique_ptr<PrefillWorker>(new PrefillWorker(std::move(impl)));
}

PrefillWorker::PrefillWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

PrefillWorker::~PrefillWorker() {
  std::vector<Impl::TaskPtr> all;
  {
    auto locked = impl_->state.Lock();
    locked->stopping = true;
    for (const auto& [id, task] : locked->tasks) all.push_back(task);
  }
  for (const auto& task : all) task->stop.Set();
  impl_->work.notify_all();
  impl_->room.notify_all();
  impl_->threads.clear();
  // What no thread had in its hands. Hand-overs are the caller's, and still run.
  all.clear();
  {
    auto locked = impl_->state.Lock();
    for (const auto& [id, task] : locked->tasks) {
      if (task->phase != Impl::Phase::kHandedOver) all.push_back(task);
    }
  }
  for (const auto& task : all)
    impl_->Fail(task, Error(StatusCode::kCancelled, "the prefill worker stops"));
  auto locked = impl_->state.Lock();
  locked.Wait(impl_->quiet, [](const Impl::State& s) { return s.tasks.empty(); });
}

uint64_t PrefillWorker::NewId() { return ++impl_->ids; }

Status PrefillWorker::Submit(PrefillTask task, OnDone done) {
  const ModelConfig& config = impl_->model->config();
  const uint64_t room = uint64_t{impl_->arena->pool().blocks()} * impl_->arena->block_tokens();
  EMS_RETURN_IF_ERROR(CheckPrompt(task.prompt, std::min<uint64_t>(room, config.positions_max),
                                  config.vocab, task.sampler));
  const GenerationOptions options{.sampler = task.sampler, .draft = task.draft};
  auto made =
      std::make_shared<Impl::Task>(std::move(task), std::move(done), impl_->arena.get(), options);
  const uint64_t id = made->spec.id;
  {
    auto locked = impl_->state.Lock();
    if (locked->tasks.contains(id))
      return Error(StatusCode::kAlreadyExists, "prompt {} is here already", id);
    if (locked->stopping || locked->tasks.size() >= impl_->options.queue_max) {
      return Error(StatusCode::kResourceExhausted, "{} prompts are here already",
                   locked->tasks.size());
    }
    ++locked->stats.tasks;
    made->order = ++locked->orders;
    locked->queued.push_back(made);
    locked->tasks.emplace(id, std::move(made));
  }
  impl_->work.notify_all();
  return OkStatus();
}

bool PrefillWorker::Cancel(uint64_t id) {
  Impl::TaskPtr task;
  bool idle = false;  // in nobody's hands
  {
    auto locked = impl_->state.Lock();
    const auto found = locked->tasks.find(id);
    if (found == locked->tasks.end() || found->second->phase == Impl::Phase::kHandedOver)
      return false;
    task = found->second;
    task->cancelled = true;
    idle = Impl::Seize(&*locked, task);
  }
  task->stop.Set();
  if (idle) impl_->Fail(task, Error(StatusCode::kCancelled, "cancelled"));
  return true;
}

Status PrefillWorker::HandOver(uint64_t id, fabric::RingSender* ring, HandoffId handoff,
                               Deadline deadline, const fabric::RingSendOptions& how) {
  Impl::TaskPtr task;
  {
    auto locked = impl_->state.Lock();
    const auto found = locked->tasks.find(id);
    if (found == locked->tasks.end() || found->second->phase != Impl::Phase::kDone)
      return Error(StatusCode::kNotFound, "no finished prompt {} is here", id);
    task = found->second;
    task->phase = Impl::Phase::kHandedOver;
  }
  const Status sent = SendKv(ring, handoff, task->generation.kv(), deadline, how);
  task->generation.kv().Clear();
  {
    auto locked = impl_->state.Lock();
    impl_->Forget(&*locked, task);
    ++locked->freed;
    // Under the lock: a thread that waits for quiet may destroy all of this once it has it.
    task.reset();
    impl_->room.notify_all();
    impl_->quiet.notify_all();
  }
  return sent;
}

PrefillWorkerStats PrefillWorker::stats() {
  const uint32_t free_blocks = impl_->arena->pool().free_blocks();
  auto locked = impl_->state.Lock();
  PrefillWorkerStats stats = locked->stats;
  stats.here = static_cast<uint32_t>(locked->tasks.size());
  stats.queued_cost = locked->scheduler.queued_cost();
  stats.busy = locked->groups_busy > 0 || locked->scheduler.queued() > 0;
  for (const auto& task : locked->queued)
    stats.queued_cost += static_cast<double>(task->spec.prompt.size());
  stats.free_blocks = free_blocks;
  stats.ticks = impl_->ticks.load(std::memory_order_relaxed);
  return stats;
}

PrefixCacheStats PrefillWorker::cache_stats() {
  return impl_->cache == nullptr ? PrefixCacheStats() : impl_->cache->stats();
}

const Model& PrefillWorker::model() const { return *impl_->model; }
uint32_t PrefillWorker::block_tokens() const { return impl_->arena->block_tokens(); }

}  // namespace ems::pdc
