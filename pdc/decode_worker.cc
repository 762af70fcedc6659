#include "pdc/decode_worker.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "pdc/decode_job.h"
#include "pdc/kv_intake.h"
#include "pdc/stall_watch.h"

namespace ems::pdc {
namespace {

// How soon a task is noticed whose time has passed while it was waiting.
constexpr Duration kSweepEvery = std::chrono::milliseconds(20);

Status CheckOptions(const DecodeWorkerOptions& options, size_t peers) {
  if (peers == 0) return Error(StatusCode::kInvalidArgument, "a decode worker of no prefill peer");
  for (const auto& [name, value] :
       {std::pair("batch_max", options.batch_max), std::pair("queue_max", options.queue_max),
        std::pair("attempts_max", options.attempts_max)}) {
    if (value < 1 || value > 65'536)
      return Error(StatusCode::kInvalidArgument, "{} is {}: 1 to 65536", name, value);
  }
  return OkStatus();
}

}  // namespace

struct DecodeWorker::Impl {
  using Task = DecodeJob;
  using TaskPtr = std::shared_ptr<Task>;
  struct State {
    std::unordered_map<uint64_t, TaskPtr> tasks;
    std::deque<TaskPtr> waiting;  // for admission, the oldest first
    std::vector<TaskPtr> arrived;
    uint32_t admitted = 0;
    uint64_t orders = 0, handoffs = 0;
    uint64_t changes = 0;     // that may let somebody in
    TimePoint pause_until{};  // the peers' queues were full
    DecodeWorkerStats stats;
    bool stopping = false;  // the admission ends
    bool closing = false;   // the decode loop ends
  };

  Impl(std::shared_ptr<const Model> model_in, std::unique_ptr<KvArena> arena_in,
       const DecodeWorkerOptions& options_in)
      : options(options_in),
        model(std::move(model_in)),
        arena(std::move(arena_in)),
        watch(std::in_place, options.stall_limit) {}

  uint32_t BlocksFor(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens - 1) / arena->block_tokens() + 1);
  }

  void AdmitLoop();
  void SweepWaiting();
  bool TryAdmit(const TaskPtr& task);
  void Begin(const TaskPtr& task, KvIntake* intake, std::vector<TokenId> tokens);

  bool OnFirst(const TaskPtr& task, const PrefillOutcome& outcome);
  void OnLost(const TaskPtr& task, const Status& why);

  void DecodeLoop();
  void TakeIn(const TaskPtr& task, std::vector<TaskPtr>* running);
  void DropEnded(std::vector<TaskPtr>* running);
  std::vector<TaskPtr> MakeRoom(std::vector<TaskPtr>* running);
  bool AskArriving(const Task& youngest);
  void Step(std::vector<TaskPtr>* running, const std::vector<TaskPtr>& ready);
  void Tell(const TaskPtr& task);
  void Save(Task* task, context::SavePhase phase);

  void GiveWay(const TaskPtr& task);
  // Back to the front of the queue, without its KV.
  void Requeue(const TaskPtr& task, Duration pause = Duration(0));
  void End(const TaskPtr& task, Result<FinishReason> how);
  bool GivesWay(const Task& task) {
    const auto locked = state.Lock();
    return task.gives_way;
  }

  const DecodeWorkerOptions options;
  const std::shared_ptr<const Model> model;
  const std::unique_ptr<KvArena> arena;
  std::unique_ptr<PrefixCache> cache;  // may be null
  std::unique_ptr<Engine> engine;
  Guarded<State> state;
  std::condition_variable admit, decode;
  Guarded<StallWatch> watch;
  std::vector<std::unique_ptr<KvIntake>> intakes;
  std::optional<TimePoint> no_peer_since;  // of the admission: none was well then, nor since
  Thread admit_thread, decode_thread;
};

// --- Admission.

void DecodeWorker::Impl::AdmitLoop() {
  uint64_t seen = 0;
  while (true) {
    TaskPtr next;
    {
      auto locked = state.Lock();
      locked.WaitFor(admit, kSweepEvery, [&](const State& s) {
        return s.stopping || (s.changes != seen && !s.waiting.empty());
      });
      if (locked->stopping) break;
      seen = locked->changes;
      if (!locked->waiting.empty() && locked->admitted < options.batch_max &&
          Clock::System().Now() >= locked->pause_until)
        next = locked->waiting.front();
    }
    SweepWaiting();
    if (next == nullptr || next->Over()) continue;
    if (!TryAdmit(next)) continue;
    auto locked = state.Lock();
    ++locked->changes;  // perhaps the one behind it, too
  }
  std::deque<TaskPtr> left;
  {
    auto locked = state.Lock();
    left.swap(locked->waiting);
  }
  for (const TaskPtr& task : left)
    End(task, Error(StatusCode::kUnavailable, "the decode worker stops"));
}

void DecodeWorker::Impl::SweepWaiting() {
  std::vector<std::pair<TaskPtr, Status>> over;
  {
    auto locked = state.Lock();
    for (const TaskPtr& task : locked->waiting) {
      if (const auto why = task->Over()) over.emplace_back(task, *why);
    }
    for (const auto& [task, why] : over) std::erase(locked->waiting, task);
  }
  for (const auto& [task, why] : over) End(task, why);
}

// False: not now. The task stays at the front of the queue then, or has ended.
bool DecodeWorker::Impl::TryAdmit(const TaskPtr& task) {
  const Result<KvIntake*> intake = ChooseIntake(intakes, task->lost_at);
  if (!intake.ok()) {
    const TimePoint now = Clock::System().Now();
    if (!no_peer_since) no_peer_since = now;
    // All that wait lose patience together, not one after the other.
    if (now - std::max(*no_peer_since, task->waits_since) < options.peer_patience) return false;
    {
      auto locked = state.Lock();
      std::erase(locked->waiting, task);
    }
    End(task, intake.status());
    return false;
  }
  no_peer_since.reset();
  std::vector<TokenId> tokens = task->Tokens();
  uint32_t admitted = 0;
  {
    auto locked = state.Lock();
    admitted = locked->admitted;
  }
  // A block for each of those that are here already: they grow.
  const uint64_t room = std::min<uint64_t>(tokens.size() + 1, model->config().positions_max);
  const uint32_t blocks = BlocksFor(room);
  if (admitted > 0 && arena->pool().free_blocks() < blocks + admitted) return false;
  KvSequence kv(arena.get());
  if (!kv.Reserve(static_cast<uint32_t>(room)).ok()) return false;  // saves hold some
  task->generation.emplace(std::move(kv), tokens, task->Options());
  task->told = 0;
  task->saved = 0;
  Begin(task, *intake, std::move(tokens));
  return true;
}

void DecodeWorker::Impl::Begin(const TaskPtr& task, KvIntake* intake, std::vector<TokenId> tokens) {
  PrefillTask prefill{.prompt = std::move(tokens),
                      .sampler = task->spec.sampler,
                      .cache_salt = task->spec.cache_salt,
                      .deadline = task->spec.deadline};
  {
    auto locked = state.Lock();
    std::erase(locked->waiting, task);
    ++locked->admitted;
    task->admitted = task->arriving = true;
    task->intake = intake;
    task->handoff = ++locked->handoffs;
    prefill.id = task->handoff;
  }
  const uint64_t id = prefill.id;
  // From here on the task is the intake's.
  intake->Begin(
      std::move(prefill), &task->generation->kv(),
      {.on_first = [this, task](const PrefillOutcome& outcome) { return OnFirst(task, outcome); },
       .on_arrived =
           [this, task] {
             {
               auto locked = state.Lock();
               task->intake = nullptr;
               locked->arrived.push_back(task);
             }
             decode.notify_one();
           },
       .on_lost = [this, task](const Status& why) { OnLost(task, why); }});
  // It may have been cancelled, or its blocks wanted back, before the intake knew of it.
  if (task->cancelled.load(std::memory_order_acquire) || GivesWay(*task)) intake->Cancel(id);
}

// --- Of an intake's thread.

bool DecodeWorker::Impl::OnFirst(const TaskPtr& task, const PrefillOutcome& outcome) {
  if (task->Over()) return false;
  task->first = outcome;
  task->attempts = 0;
  if (!std::exchange(task->prompt_told, true))
    task->sink->OnPrompt(static_cast<uint32_t>(task->spec.prompt.size()), outcome.cached_tokens);
  const GenerationOptions attempt = task->Options();
  task->answer.push_back(outcome.first);
  task->sink->OnTokens({&outcome.first, 1});
  {
    auto locked = state.Lock();
    ++locked->stats.tokens;
  }
  task->finished = EndOf(outcome.first, 1, task->spec.prompt.size() + task->answer.size(), attempt,
                         model->config());
  return task->finished == FinishReason::kNone;
}

void DecodeWorker::Impl::OnLost(const TaskPtr& task, const Status& why) {
  if (task->finished != FinishReason::kNone) return End(task, task->finished);
  if (const auto over = task->Over()) return End(task, *over);
  if (GivesWay(*task)) return GiveWay(task);
  switch (why.code()) {
    case StatusCode::kInvalidArgument:
      return End(task, why);
    case StatusCode::kResourceExhausted:  // its queue is full
      return Requeue(task, kSweepEvery / 2);
    default:
      break;
  }
  {
    auto locked = state.Lock();
    ++locked->stats.lost;
    task->lost_at = task->intake;
  }
  if (++task->attempts < options.attempts_max) return Requeue(task);
  End(task, Error(StatusCode::kUnavailable, "{} prefills were lost, the last one so: {}",
                  task->attempts, Message(why)));
}

// --- The decode loop.

void DecodeWorker::Impl::DecodeLoop() {
  std::vector<TaskPtr> running, arrived;
  while (true) {
    bool closing = false;
    uint64_t changes = 0;
    {
      auto locked = state.Lock();
      locked->stats.running = static_cast<uint32_t>(running.size());
      locked.Wait(decode, [&](const State& s) {
        return s.closing || !running.empty() || !s.arrived.empty();
      });
      closing = locked->closing;
      changes = locked->changes;
      arrived.swap(locked->arrived);
    }
    for (const TaskPtr& task : arrived) TakeIn(task, &running);
    arrived.clear();
    if (closing) break;
    DropEnded(&running);
    const std::vector<TaskPtr> ready = MakeRoom(&running);
    if (!ready.empty()) {
      Step(&running, ready);
    } else if (!running.empty()) {
      auto locked = state.Lock();
      (void)locked.WaitFor(decode, kSweepEvery, [&](const State& s) {
        return s.closing || s.changes != changes || !s.arrived.empty();
      });
    }
  }
  for (const TaskPtr& task : running)
    End(task, Error(StatusCode::kUnavailable, "the decode worker stops"));
}

void DecodeWorker::Impl::TakeIn(const TaskPtr& task, std::vector<TaskPtr>* running) {
  if (GivesWay(*task)) return GiveWay(task);
  {
    auto locked = state.Lock();
    task->arriving = false;
  }
  const Status taken = TakeOver(engine.get(), &*task->generation, task->first.first);
  if (!taken.ok()) return End(task, Error(StatusCode::kInternal, "{}", Message(taken)));
  task->told = 1;
  task->saved = static_cast<uint32_t>(task->generation->prompt().size());
  if (task->first.draft) task->generation->Suggest(*task->first.draft);
  // The oldest first: the last one gives way when room runs out.
  const auto older = [](const TaskPtr& a, const TaskPtr& b) { return a->order < b->order; };
  running->insert(std::ranges::upper_bound(*running, task, older), task);
}

void DecodeWorker::Impl::DropEnded(std::vector<TaskPtr>* running) {
  std::vector<TaskPtr> kept;
  for (TaskPtr& task : *running) {
    if (const auto why = task->Over()) {
      End(task, *why);
    } else {
      kept.push_back(std::move(task));
    }
  }
  running->swap(kept);
}

// Two more tokens each, a guess among them, or the youngest of all that have blocks give way. Those
// whose KV still comes take a moment: until then who has no room sits out. Who can step now.
std::vector<DecodeWorker::Impl::TaskPtr> DecodeWorker::Impl::MakeRoom(
    std::vector<TaskPtr>* running) {
  std::vector<TaskPtr> ready;
  bool asked = false;  // the blocks that come back are for those who were first
  for (size_t i = 0; i < running->size(); ++i) {
    const TaskPtr task = (*running)[i];
    KvSequence& kv = task->generation->kv();
    const uint32_t tokens = std::min(kv.tokens() + 2, model->config().positions_max);
    const auto has_room = [&] {
      return asked ? kv.blocks().size() >= BlocksFor(tokens) : kv.Reserve(tokens).ok();
    };
    bool room = has_room();
    while (!room && !asked) {
      asked = AskArriving(*running->back());
      if (asked) break;
      const TaskPtr youngest = std::move(running->back());
      running->pop_back();
      Save(&*youngest, context::SavePhase::kDecode);
      GiveWay(youngest);
      if (youngest == task) return ready;
      room = has_room();
    }
    if (room) ready.push_back(task);
  }
  return ready;
}

// True: an arriving task younger than this one, the youngest that decodes, gives its blocks back.
bool DecodeWorker::Impl::AskArriving(const Task& youngest) {
  KvIntake* intake = nullptr;
  uint64_t handoff = 0;
  {
    auto locked = state.Lock();
    Task* last = nullptr;
    for (const auto& [id, task] : locked->tasks) {
      if (task->gives_way) return true;
      if (!task->arriving || task->order < youngest.order) continue;
      if (last == nullptr || last->order < task->order) last = task.get();
    }
    if (last == nullptr) return false;
    last->gives_way = true;
    intake = last->intake;
    handoff = last->handoff;
  }
  if (intake != nullptr) intake->Cancel(handoff);  // else it has arrived, and is taken in next
  return true;
}

void DecodeWorker::Impl::GiveWay(const TaskPtr& task) {
  {
    auto locked = state.Lock();
    ++locked->stats.preempted;
  }
  Requeue(task);
}

void DecodeWorker::Impl::Step(std::vector<TaskPtr>* running, const std::vector<TaskPtr>& ready) {
  std::vector<Generation*> batch;
  batch.reserve(ready.size());
  for (const TaskPtr& task : ready) batch.push_back(&*task->generation);
  const Status stepped = DecodeStep(engine.get(), batch);
  for (const TaskPtr& task : ready) {
    if (!stepped.ok()) {
      End(task, Error(StatusCode::kInternal, "a decode step: {}", Message(stepped)));
      continue;
    }
    Tell(task);
    const FinishReason finished = task->generation->finished();
    Save(&*task, finished == FinishReason::kNone ? context::SavePhase::kDecode
                                                 : context::SavePhase::kFinal);
    if (finished == FinishReason::kNone) continue;
    {
      auto locked = state.Lock();
      locked->stats.drafts += task->generation->drafts();
      locked->stats.drafts_right += task->generation->drafts_right();
    }
    End(task, finished);
  }
  std::erase_if(*running, [](const TaskPtr& task) { return !task->generation; });  // those ended
  auto locked = state.Lock();
  ++locked->stats.steps;
}

void DecodeWorker::Impl::Tell(const TaskPtr& task) {
  const auto answer = task->generation->answer();
  const auto tokens = answer.subspan(task->told);
  task->told = answer.size();
  task->answer.insert(task->answer.end(), tokens.begin(), tokens.end());
  {
    auto locked = state.Lock();
    locked->stats.tokens += tokens.size();
  }
  task->sink->OnTokens(tokens);
}

// What of its KV is complete and new, as far as the policy wants it.
void DecodeWorker::Impl::Save(Task* task, context::SavePhase phase) {
  const Generation& generation = *task->generation;
  const KvSequence& kv = task->generation->kv();
  const uint32_t page = arena->block_tokens();
  if (cache == nullptr || !context::ShouldSave(options.cache.policy, phase) ||
      kv.tokens() / page == task->saved / page)
    return;
  cache->Save(generation.tokens().first(kv.tokens()), task->spec.cache_salt, kv, task->saved,
              phase);
  task->saved = kv.tokens();
}

// --- Ends.

void DecodeWorker::Impl::Requeue(const TaskPtr& task, Duration pause) {
  task->generation.reset();
  task->waits_since = Clock::System().Now();
  {
    auto locked = state.Lock();
    --locked->admitted;
    task->admitted = task->arriving = task->gives_way = false;
    task->intake = nullptr;
    if (pause > Duration(0)) locked->pause_until = Clock::System().Now() + pause;
    ++locked->changes;
    if (!locked->stopping) {
      const auto older = [](const TaskPtr& a, const TaskPtr& b) { return a->order < b->order; };
      locked->waiting.insert(std::ranges::upper_bound(locked->waiting, task, older), task);
      admit.notify_one();
      decode.notify_one();
      return;
    }
  }
  End(task, Error(StatusCode::kUnavailable, "the decode worker stops"));
}

void DecodeWorker::Impl::End(const TaskPtr& task, Result<FinishReason> how) {
  task->generation.reset();
  {
    auto locked = state.Lock();
    if (task->admitted) --locked->admitted;
    task->admitted = task->arriving = task->gives_way = false;
    task->intake = nullptr;
    ++locked->changes;
    locked->tasks.erase(task->spec.id);
    auto& stats = locked->stats;
    const bool cancelled = !how.ok() && how.status().code() == StatusCode::kCancelled;
    ++(how.ok() ? stats.finished : cancelled ? stats.cancelled : stats.failed);
  }
  admit.notify_one();
  decode.notify_one();
  task->sink->OnEnd(std::move(how));
}

// --- The door.

Result<std::unique_ptr<DecodeWorker>> DecodeWorker::Create(std::shared_ptr<const Model> model,
                                                           MutableBytes memory,
                                                           context::BlockStore* store,
                                                           std::vector<PrefillPeer*> peers,
                                                           const DecodeWorkerOptions& options) {
  EMS_RETURN_IF_ERROR(CheckOptions(options, peers.size()));
  EMS_ASSIGN_OR_RETURN(auto arena, KvArena::Create(model->config(), options.kv, memory));
  auto impl = std::make_unique<Impl>(std::move(model), std::move(arena), options);
  if (store != nullptr) {
    EMS_ASSIGN_OR_RETURN(
        impl->cache, PrefixCache::Create(store, impl->arena.get(), *impl->model, options.cache));
  }
  EMS_ASSIGN_OR_RETURN(impl->engine, Engine::Create(impl->model, options.engine));
  for (PrefillPeer* const peer : peers) impl->intakes.push_back(std::make_unique<KvIntake>(peer));
  Impl* const parts = impl.get();
  parts->admit_thread = Thread("ems-admit", [parts] { parts->AdmitLoop(); });
  parts->decode_thread = Thread("ems-decode", [parts] { parts->DecodeLoop(); });
  return std::unique_ptr<DecodeWorker>(new DecodeWorker(std::move(impl)));
}

DecodeWorker::DecodeWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DecodeWorker::~DecodeWorker() {
  {
    auto locked = impl_->state.Lock();
    locked->stopping = true;
  }
  impl_->admit.notify_all();
  impl_->admit_thread.Join();
  impl_->intakes.clear();
  {
    auto locked = impl_->state.Lock();
    locked->closing = true;
  }
  impl_->decode.notify_all();
  impl_->decode_thread.Join();
}

const std::string& DecodeWorker::name() const { return impl_->options.name; }
const Model& DecodeWorker::model() const { return *impl_->model; }

Status DecodeWorker::Submit(DecodeTask task, std::shared_ptr<DecodeSink> sink) {
  const ModelConfig& config = impl_->model->config();
  if (task.prompt.empty()) return Error(StatusCode::kInvalidArgument, "an empty prompt");
  if (task.tokens_max == 0) return Error(StatusCode::kInvalidArgument, "tokens_max is 0");
  EMS_RETURN_IF_ERROR(Sampler::Check(task.sampler));
  for (const TokenId token : task.prompt) {
    if (token >= config.vocab)
      return Error(StatusCode::kInvalidArgument, "token {}, of {}", token, config.vocab);
  }
  // The last token's KV is never needed.
  const uint64_t tokens =
      std::min<uint64_t>(task.prompt.size() + task.tokens_max, config.positions_max);
  if (task.prompt.size() > config.positions_max ||
      impl_->BlocksFor(tokens) > impl_->arena->pool().blocks()) {
    return Error(StatusCode::kInvalidArgument,
                 "a prompt of {} tokens and an answer of {}: the KV of {} is all there is",
                 task.prompt.size(), task.tokens_max,
                 std::min(uint64_t{impl_->arena->pool().blocks()} * impl_->arena->block_tokens(),
                          uint64_t{config.positions_max}));
  }
  const uint64_t id = task.id;
  auto made = std::make_shared<Impl::Task>(std::move(task), std::move(sink));
  {
    auto locked = impl_->state.Lock();
    if (locked->stopping) return Error(StatusCode::kUnavailable, "the decode worker stops");
    if (locked->tasks.contains(id))
      return Error(StatusCode::kAlreadyExists, "request {} is here already", id);
    if (locked->tasks.size() >= impl_->options.queue_max) {
      return Error(StatusCode::kResourceExhausted, "{} requests are here already",
                   locked->tasks.size());
    }
    made->order = ++locked->orders;
    ++locked->stats.tasks;
    ++locked->changes;
    locked->waiting.push_back(made);
    locked->tasks.emplace(id, std::move(made));
  }
  impl_->admit.notify_one();
  return OkStatus();
}

void DecodeWorker::Cancel(uint64_t id) {
  KvIntake* intake = nullptr;
  uint64_t handoff = 0;
  {
    auto locked = impl_->state.Lock();
    const auto found = locked->tasks.find(id);
    if (found == locked->tasks.end()) return;
    found->second->cancelled.store(true, std::memory_order_release);
    intake = found->second->intake;
    handoff = found->second->handoff;
    ++locked->changes;
  }
  if (intake != nullptr) intake->Cancel(handoff);
  impl_->admit.notify_one();
}

DecodeHealth DecodeWorker::health() {
  const DecodeWorkerStats now = stats();
  const uint64_t page = impl_->arena->block_tokens(), blocks = impl_->arena->pool().blocks();
  Status admits = ChooseIntake(impl_->intakes, nullptr).status();
  auto watch = impl_->watch.Lock();
  return {.status = watch->Observe(now.steps, now.running > 0, Clock::System().Now()),
          .running = now.admitted,
          .waiting = now.waiting,
          .kv_tokens = (blocks - now.free_blocks) * page,
          .kv_tokens_max = blocks * page,
          .admits = std::move(admits)};
}

DecodeWorkerStats DecodeWorker::stats() {
  const uint32_t free_blocks = impl_->arena->pool().free_blocks();
  auto locked = impl_->state.Lock();
  DecodeWorkerStats stats = locked->stats;
  stats.waiting = static_cast<uint32_t>(locked->waiting.size());
  stats.admitted = locked->admitted;
  stats.free_blocks = free_blocks;
  return stats;
}

PrefixCacheStats DecodeWorker::cache_stats() {
  return impl_->cache == nullptr ? PrefixCacheStats() : impl_->cache->stats();
}

}  // namespace ems::pdc
