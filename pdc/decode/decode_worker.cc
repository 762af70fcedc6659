#include "pdc/decode/decode_worker.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "pdc/decode/admission.h"
#include "pdc/scheduling/stall_watch.h"

namespace ems::pdc {
namespace {

// How soon a task is noticed whose time has passed while there was no room for its next tokens.
constexpr Duration kSweepEvery = std::chrono::milliseconds(20);

Status Stopping() { return Error(StatusCode::kUnavailable, "the decode worker stops"); }

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
  struct State {
    std::unordered_map<uint64_t, DecodeJobPtr> tasks;
    std::vector<DecodeJobPtr> arrived;
    uint64_t orders = 0;
    uint64_t changes = 0;  // blocks came back
    DecodeWorkerStats stats;
    bool closing = false;  // the decode loop ends
  };

  Impl(std::shared_ptr<const Model> model_in, std::unique_ptr<KvArena> arena_in,
       const DecodeWorkerOptions& options_in)
      : options(options_in),
        model(std::move(model_in)),
        arena(std::move(arena_in)),
        watch(std::in_place, options.stall_limit) {}

  void Begin(const std::vector<PrefillPeer*>& peers);
  void Close();

  void Run();
  void TakeIn(const DecodeJobPtr& task);
  void DropEnded();
  std::vector<DecodeJobPtr> MakeRoom();
  void Step(const std::vector<DecodeJobPtr>& ready);
  void Tell(const DecodeJobPtr& task);
  void Save(DecodeJob* task, context::SavePhase phase);
  void End(const DecodeJobPtr& task, Result<FinishReason> how);
  // It holds nothing any more.
  void OnEnded(const DecodeJobPtr& task, Result<FinishReason> how);

  const DecodeWorkerOptions options;
  const std::shared_ptr<const Model> model;
  const std::unique_ptr<KvArena> arena;
  std::unique_ptr<PrefixCache> cache;  // may be null
  std::unique_ptr<Engine> engine;
  Guarded<State> state;
  std::condition_variable decode;
  Guarded<StallWatch> watch;
  std::vector<DecodeJobPtr> running;  // of the loop, the oldest first
  std::unique_ptr<Admission> admission;
  Thread thread;
};

void DecodeWorker::Impl::Begin(const std::vector<PrefillPeer*>& peers) {
  admission = std::make_unique<Admission>(
      model->config(), arena.get(), peers,
      AdmissionOptions{options.batch_max, options.attempts_max, options.peer_patience},
      AdmissionEvents{
          .on_arrived =
              [this](const DecodeJobPtr& task) {
                {
                  auto locked = state.Lock();
                  locked->arrived.push_back(task);
                }
                decode.notify_one();
              },
          .on_ended = [this](const DecodeJobPtr& task,
                             Result<FinishReason> how) { OnEnded(task, std::move(how)); },
          .on_room =
              [this] {
                {
                  auto locked = state.Lock();
                  ++locked->changes;
                }
                decode.notify_one();
              }});
  thread = Thread("ems-decode", [this] { Run(); });
}

void DecodeWorker::Impl::Close() {
  admission->Stop();
  {
    auto locked = state.Lock();
    locked->closing = true;
  }
  decode.notify_all();
  thread.Join();
}

// --- The decode loop.

void DecodeWorker::Impl::Run() {
  std::vector<DecodeJobPtr> arrived;
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
    for (const DecodeJobPtr& task : arrived) TakeIn(task);
    arrived.clear();
    if (closing) break;
    DropEnded();
    const std::vector<DecodeJobPtr> ready = MakeRoom();
    if (!ready.empty()) {
      Step(ready);
    } else if (!running.empty()) {
      auto locked = state.Lock();
      (void)locked.WaitFor(decode, kSweepEvery, [&](const State& s) {
        return s.closing || s.changes != changes || !s.arrived.empty();
      });
    }
  }
  for (const DecodeJobPtr& task : running) End(task, Stopping());
}

void DecodeWorker::Impl::TakeIn(const DecodeJobPtr& task) {
  if (!admission->HandOn(task)) return;
  const Status taken = TakeOver(engine.get(), &*task->generation, task->first.first);
  if (!taken.ok()) return End(task, Error(StatusCode::kInternal, "{}", Message(taken)));
  task->told = 1;
  task->saved = static_cast<uint32_t>(task->generation->prompt().size());
  if (task->first.draft) task->generation->Suggest(*task->first.draft);
  // The oldest first: the last one gives way when room runs out.
  running.insert(std::ranges::upper_bound(running, task, IsOlder), task);
}

void DecodeWorker::Impl::DropEnded() {
  std::erase_if(running, [this](const DecodeJobPtr& task) {
    const auto why = task->Over();
    if (why) End(task, *why);
    return why.has_value();
  });
}

// Two more tokens each, a guess among them, or the youngest of all that have blocks give way. Those
// whose KV still comes take a moment: until then who has no room sits out. Who can step now.
std::vector<DecodeJobPtr> DecodeWorker::Impl::MakeRoom() {
  std::vector<DecodeJobPtr> ready;
  bool asked = false;  // the blocks that come back are for those who were first
  for (size_t i = 0; i < running.size(); ++i) {
    const DecodeJobPtr task = running[i];
    KvSequence& kv = task->generation->kv();
    const uint32_t tokens = std::min(kv.tokens() + 2, model->config().positions_max);
    const auto has_room = [&] { return asked ? kv.capacity() >= tokens : kv.Reserve(tokens).ok(); };
    bool room = has_room();
    while (!room && !asked) {
      asked = admission->AskForBlocks(running.back()->order);
      if (asked) break;
      const DecodeJobPtr youngest = std::move(running.back());
      running.pop_back();
      Save(&*youngest, context::SavePhase::kDecode);
      admission->GiveWay(youngest);
      if (youngest == task) return ready;
      room = has_room();
    }
    if (room) ready.push_back(task);
  }
  return ready;
}

void DecodeWorker::Impl::Step(const std::vector<DecodeJobPtr>& ready) {
  std::vector<Generation*> batch;
  batch.reserve(ready.size());
  for (const DecodeJobPtr& task : ready) {
    EMS_CHECK(task->generation, "task {} of the batch has no KV", task->spec.id);
    batch.push_back(&*task->generation);
  }
  const Status stepped = DecodeStep(engine.get(), batch);
  for (const DecodeJobPtr& task : ready) {
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
  std::erase_if(running,
                [](const DecodeJobPtr& task) { return !task->generation; });  // those ended
  auto locked = state.Lock();
  ++locked->stats.steps;
}

void DecodeWorker::Impl::Tell(const DecodeJobPtr& task) {
  const auto answer = task->generation->answer();
  const auto tokens = answer.subspan(task->told);
  EMS_CHECK(!tokens.empty(), "a step gave task {} no token", task->spec.id);
  task->told = answer.size();
  task->answer.insert(task->answer.end(), tokens.begin(), tokens.end());
  {
    auto locked = state.Lock();
    locked->stats.tokens += tokens.size();
  }
  task->sink->OnTokens(tokens);
}

// What of its KV is complete and new, as far as the policy wants it.
void DecodeWorker::Impl::Save(DecodeJob* task, context::SavePhase phase) {
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

void DecodeWorker::Impl::End(const DecodeJobPtr& task, Result<FinishReason> how) {
  admission->Leave(task);
  OnEnded(task, std::move(how));
}

void DecodeWorker::Impl::OnEnded(const DecodeJobPtr& task, Result<FinishReason> how) {
  {
    auto locked = state.Lock();
    const size_t there = locked->tasks.erase(task->spec.id);
    EMS_CHECK(there == 1, "task {} has ended twice", task->spec.id);
    auto& stats = locked->stats;
    const bool cancelled = !how.ok() && how.status().code() == StatusCode::kCancelled;
    ++(how.ok() ? stats.finished : cancelled ? stats.cancelled : stats.failed);
  }
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
  impl->Begin(peers);
  return std::unique_ptr<DecodeWorker>(new DecodeWorker(std::move(impl)));
}

DecodeWorker::DecodeWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DecodeWorker::~DecodeWorker() { impl_->Close(); }

const std::string& DecodeWorker::name() const { return impl_->options.name; }
const Model& DecodeWorker::model() const { return *impl_->model; }

Status DecodeWorker::Submit(DecodeTask task, std::shared_ptr<DecodeSink> sink) {
  const ModelConfig& config = impl_->model->config();
  EMS_RETURN_IF_ERROR(CheckPrompt(task.prompt, config.positions_max, config.vocab, task.sampler));
  if (task.tokens_max == 0) return Error(StatusCode::kInvalidArgument, "tokens_max is 0");
  // The last token's KV is never needed.
  const uint64_t tokens =
      std::min<uint64_t>(task.prompt.size() + task.tokens_max, config.positions_max);
  if (impl_->admission->BlocksFor(tokens) > impl_->arena->pool().blocks()) {
    return Error(StatusCode::kInvalidArgument,
                 "a prompt of {} tokens and an answer of {}: the KV of {} is all there is",
                 task.prompt.size(), task.tokens_max,
                 std::min(uint64_t{impl_->arena->pool().blocks()} * impl_->arena->block_tokens(),
                          uint64_t{config.positions_max}));
  }
  const auto made = std::make_shared<DecodeJob>(std::move(task), std::move(sink));
  const uint64_t id = made->spec.id;
  {
    auto locked = impl_->state.Lock();
    if (locked->tasks.contains(id))
      return Error(StatusCode::kAlreadyExists, "request {} is here already", id);
    if (locked->tasks.size() >= impl_->options.queue_max) {
      return Error(StatusCode::kResourceExhausted, "{} requests are here already",
                   locked->tasks.size());
    }
    made->order = ++locked->orders;
    ++locked->stats.tasks;
    locked->tasks.emplace(id, made);
  }
  if (impl_->admission->Add(made)) return OkStatus();
  auto locked = impl_->state.Lock();
  --locked->stats.tasks;
  locked->tasks.erase(id);
  return Stopping();
}

void DecodeWorker::Cancel(uint64_t id) {
  DecodeJobPtr task;
  {
    auto locked = impl_->state.Lock();
    const auto found = locked->tasks.find(id);
    if (found == locked->tasks.end()) return;
    task = found->second;
  }
  task->cancelled.store(true, std::memory_order_release);
  impl_->admission->OnCancelled(task);
}

DecodeHealth DecodeWorker::health() {
  const DecodeWorkerStats now = stats();
  const uint64_t page = impl_->arena->block_tokens(), blocks = impl_->arena->pool().blocks();
  Status admits = impl_->admission->admits();
  auto watch = impl_->watch.Lock();
  return {.status = watch->Observe(now.steps, now.running > 0, Clock::System().Now()),
          .running = now.admitted,
          .waiting = now.waiting,
          .kv_tokens = (blocks - now.free_blocks) * page,
          .kv_tokens_max = blocks * page,
          .ticks = now.steps,
          .busy = now.running > 0,
          .admits = std::move(admits)};
}

DecodeWorkerStats DecodeWorker::stats() {
  const uint32_t free_blocks = impl_->arena->pool().free_blocks();
  const AdmissionStats admission = impl_->admission->stats();
  auto locked = impl_->state.Lock();
  DecodeWorkerStats stats = locked->stats;
  stats.tokens += admission.first_tokens;
  stats.preempted = admission.preempted;
  stats.lost = admission.lost;
  stats.waiting = admission.waiting;
  stats.admitted = admission.admitted;
  stats.free_blocks = free_blocks;
  return stats;
}

PrefixCacheStats DecodeWorker::cache_stats() {
  return impl_->cache == nullptr ? PrefixCacheStats() : impl_->cache->stats();
}

}  // namespace ems::pdc
