#include "bench/trace/trace_replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/harness/figures.h"
#include "bench/harness/trace_payload.h"
#include "common/check.h"

namespace ems::bench {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(100);
// A block that was evicted between look-up and load is a miss.
constexpr std::string_view kEvicted = "load NOT_FOUND";

Duration DurationOf(double seconds) { return Duration(std::llround(seconds * 1e9)); }

// Tokens of the leading `blocks`; the last block of a request may be partial.
uint64_t TokensOf(const TraceRequest& request, uint64_t blocks) {
  return std::min(blocks * kTraceBlockTokens, request.input_tokens);
}

}  // namespace

void AddTtftOptions(Command* command, TtftModel* model) {
  command->AddOption("--prefill-tokens-per-s", &model->prefill_tokens_per_s,
                     "Rate at which missed tokens are computed in the TTFT model",
                     {.check = InRange{1.0, 1e9}});
  command->AddOption("--kv-bytes-per-token", &model->kv_bytes_per_token,
                     "Of the same model: what a hit loads in the TTFT model",
                     {.check = InRange{1, 1'000'000'000}});
}

context::BlockHasher TraceHasher(uint64_t block_bytes) {
  context::KeyDomain domain;
  domain.model = "ems-bench trace";
  domain.dtype = "bytes";
  domain.kv_layout = fmt::format("{}x{}", kTraceBlockTokens, block_bytes);
  auto hasher = context::BlockHasher::Make(domain, context::HashKind::kSha256,
                                           static_cast<uint32_t>(kTraceBlockTokens));
  EMS_CHECK(hasher.ok(), "{}", ToString(hasher.status()));
  return *hasher;
}

std::string TraceKey(const context::BlockHasher& hasher, uint64_t block) {
  auto key = hasher.OwnKey(fmt::format("{}", block));
  EMS_CHECK(key.ok(), "{}", ToString(key.status()));
  return *std::move(key);
}

Duration TtftModel::Compute(uint64_t tokens) const {
  return DurationOf(static_cast<double>(tokens) / prefill_tokens_per_s);
}

Duration TtftModel::Load(uint64_t tokens, uint64_t loaded_bytes, Duration load_time) const {
  if (loaded_bytes == 0) return Duration::zero();
  return DurationOf(static_cast<double>(tokens) * static_cast<double>(kv_bytes_per_token) *
                    Seconds(load_time) / static_cast<double>(loaded_bytes));
}

std::string TtftModel::Text() const {
  const TtftModel paper;
  const bool same = prefill_tokens_per_s == paper.prefill_tokens_per_s &&
                    kv_bytes_per_token == paper.kv_bytes_per_token;
  return fmt::format("KV of {} bytes a token, {:g} tokens/s of prefill ({})", kv_bytes_per_token,
                     prefill_tokens_per_s,
                     same ? "DeepSeek-R1 on an NPU of CloudMatrix384" : "as given");
}

double ReplayTotals::HitPercent() const { return Percent(hit_blocks, blocks); }
double ReplayTotals::HitTokenPercent() const { return Percent(hit_tokens, tokens); }
double ReplayTotals::ArrivedPercent() const { return Percent(arrived_blocks, blocks); }
double ReplayTotals::ArrivedTokenPercent() const { return Percent(arrived_tokens, tokens); }
double ReplayTotals::IdealPercent() const { return Percent(ideal_blocks, blocks); }
double ReplayTotals::IdealTokenPercent() const { return Percent(ideal_tokens, tokens); }
double ReplayTotals::DeltaPoints() const {
  return std::max(std::abs(HitPercent() - IdealPercent()),
                  std::abs(ArrivedPercent() - IdealPercent()));
}

// One request at a time: its buffers, and what happened in it.
struct TraceReplay::Worker {
  std::vector<std::byte> memory;  // [blocks of the longest request × block bytes]
  const TraceRequest* request = nullptr;
  std::vector<std::string> keys;
  size_t hits = 0;
  size_t arrived = 0;
  ReplayTotals sums;  // of this request
  Duration lookup{0}, load{0}, save{0};

  MutableBytes Block(size_t i, uint64_t bytes) {
    return std::span(memory).subspan(i * bytes, bytes);
  }
  RequestOutcome Outcome() const {
    RequestOutcome outcome{.done = true,
                           .blocks = static_cast<uint32_t>(keys.size()),
                           .arrived_blocks = static_cast<uint32_t>(arrived),
                           .wrong_bytes = sums.wrong_bytes,
                           .lookup = lookup,
                           .load = load,
                           .save = save};
    for (const auto& [kind, count] : sums.errors) {
      if (kind == kEvicted) continue;
      (kind.starts_with("save") ? outcome.failed_saves : outcome.failed_gets) += count;
    }
    return outcome;
  }
  void CountError(std::string_view operation, const Status& status) {
    if (!status.ok()) ++sums.errors[fmt::format("{} {}", operation, CodeName(status.code()))];
  }
};

TraceReplay::TraceReplay(const Trace* trace, context::ContextCache* cache, IdealLru* ideal,
                         const ReplaySettings& settings)
    : trace_(trace),
      cache_(cache),
      settings_(settings),
      hasher_(TraceHasher(settings.block_bytes)) {
  ideal_hits_.reserve(trace->requests.size());
  for (const TraceRequest& request : trace->requests)
    ideal_hits_.push_back(static_cast<uint32_t>(ideal->Request(request.blocks)));
}

ReplayResult TraceReplay::Run(std::function<void(const ReplayTotals&)> on_mark,
                              std::function<void(uint64_t)> on_progress,
                              std::function<bool()> stop) {
  start_ = Clock::System().Now();
  {
    auto shared = shared_.Lock();
    shared->workers_left = settings_.concurrency;
    if (settings_.keep_requests) shared->result.requests.resize(trace_->requests.size());
  }
  ThreadPool workers("replay", settings_.concurrency, settings_.concurrency);
  for (uint32_t i = 0; i < settings_.concurrency; ++i)
    EMS_CHECK(workers.TrySubmit([this] { Work(); }), "the pool has room for each worker");
  bool done = false;
  while (!done) {
    std::vector<ReplayTotals> marks;
    uint64_t requests = 0;
    {
      auto shared = shared_.Lock();
      done = shared.WaitFor(changed_, kPollInterval,
                            [](const Shared& s) { return s.workers_left == 0; });
      marks.swap(shared->marks);
      requests = shared->result.totals.requests;
    }
    for (const ReplayTotals& mark : marks) on_mark(mark);
    on_progress(requests);
    if (stop()) stop_.Set();
  }
  auto shared = shared_.Lock();
  shared->result.totals.elapsed = Clock::System().Now() - start_;
  shared->result.totals.interrupted = stop_.IsSet();
  ModelTtft(&*shared);
  return std::move(shared->result);
}

void TraceReplay::Work() {
  Worker worker;
  worker.memory.resize(trace_->request_blocks_max * settings_.block_bytes);
  while (!stop_.IsSet()) {
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= trace_->requests.size()) break;
    worker.request = &trace_->requests[index];
    if (!WaitForTurn(*worker.request)) break;
    RunRequest(index, &worker);
  }
  auto shared = shared_.Lock();
  --shared->workers_left;
  changed_.notify_all();
}

// Waits until the request is due; false when the replay ends first.
bool TraceReplay::WaitForTurn(const TraceRequest& request) {
  if (settings_.speedup <= 0) return true;
  const double due_s = static_cast<double>(request.timestamp_ms) / 1e3 / settings_.speedup;
  const TimePoint due = start_ + DurationOf(due_s);
  const Duration left = due - Clock::System().Now();
  if (left > Duration::zero() && stop_.WaitFor(left)) return false;
  return true;
}

void TraceReplay::RunRequest(size_t index, Worker* worker) {
  const TraceRequest& request = *worker->request;
  worker->sums = {};
  worker->sums.requests = 1;
  worker->sums.blocks = request.blocks.size();
  worker->sums.tokens = request.input_tokens;
  if (settings_.speedup > 0) {
    const double due_s = static_cast<double>(request.timestamp_ms) / 1e3 / settings_.speedup;
    worker->sums.lag_max = Clock::System().Now() - start_ - DurationOf(due_s);
  }
  worker->keys.clear();
  for (const uint64_t block : request.blocks) worker->keys.push_back(TraceKey(hasher_, block));
  LookUp(worker);
  Load(worker);
  Save(worker);
  worker->sums.hit_blocks = worker->hits;
  worker->sums.hit_tokens = TokensOf(request, worker->hits);
  worker->sums.arrived_blocks = worker->arrived;
  worker->sums.arrived_tokens = TokensOf(request, worker->arrived);
  worker->sums.ideal_blocks = ideal_hits_[index];
  worker->sums.ideal_tokens = TokensOf(request, ideal_hits_[index]);
  Commit(index, *worker);
}

void TraceReplay::LookUp(Worker* worker) {
  const TimePoint start = Clock::System().Now();
  const context::LookupResult found = cache_->Lookup(worker->keys);
  worker->lookup = Clock::System().Now() - start;
  worker->hits = found.leading_blocks;
  for (const auto& present : found.present) worker->CountError("lookup", present.status());
  Note("lookup", worker->lookup, cache_->TimeoutOf(0, {}), worker);
}

void TraceReplay::Load(Worker* worker) {
  worker->load = Duration::zero();
  worker->arrived = 0;
  if (worker->hits == 0) return;
  std::vector<MutableBuffers> into;
  for (size_t i = 0; i < worker->hits; ++i) {
    into.push_back(worker->Block(i, settings_.block_bytes));
    if (settings_.verify) Spoil(worker->Block(i, settings_.block_bytes), settings_.block_bytes);
  }
  const TimePoint start = Clock::System().Now();
  const context::LoadResult loaded =
      cache_->Load(std::span(worker->keys).first(worker->hits), into);
  worker->load = Clock::System().Now() - start;
  worker->arrived = loaded.leading_blocks;
  Note("load", worker->load, cache_->TimeoutOf(worker->hits * settings_.block_bytes, {}), worker);
  for (size_t i = 0; i < worker->hits; ++i) {
    worker->CountError("load", loaded.blocks[i].status());
    if (!loaded.blocks[i].ok()) continue;
    worker->sums.loaded_bytes += *loaded.blocks[i];
    if (!settings_.verify) continue;
    const uint64_t wrong =
        CountWrongBytes(worker->request->blocks[i], worker->Block(i, settings_.block_bytes));
    worker->sums.wrong_bytes += wrong;
    worker->sums.wrong_blocks += wrong > 0 ? 1 : 0;
  }
}

// Saves all that did not arrive, as an engine that had to compute it would.
void TraceReplay::Save(Worker* worker) {
  worker->save = Duration::zero();
  const size_t blocks = worker->keys.size() - worker->arrived;
  if (blocks == 0) return;
  std::vector<ConstBuffers> values;
  for (size_t i = worker->arrived; i < worker->keys.size(); ++i) {
    const MutableBytes block = worker->Block(i, settings_.block_bytes);
    FillBlock(worker->request->blocks[i], block);
    values.push_back(ConstBytes(block));
  }
  const TimePoint start = Clock::System().Now();
  const context::SaveResult saved =
      cache_->Save(std::span(worker->keys).subspan(worker->arrived), values);
  worker->save = Clock::System().Now() - start;
  worker->sums.saved_bytes = saved.stored_blocks * settings_.block_bytes;
  for (const Status& status : saved.blocks) worker->CountError("save", status);
  Note("save", worker->save, cache_->TimeoutOf(blocks * settings_.block_bytes, {}), worker);
}

void TraceReplay::Note(const char* operation, Duration took, Duration deadline, Worker* worker) {
  ReplayTotals& sums = worker->sums;
  ++sums.calls;
  if (took > deadline + kDeadlineGrace) ++sums.late_calls;
  if (took > sums.slowest.took) sums.slowest = {operation, took, deadline};
}

void TraceReplay::Commit(size_t index, const Worker& worker) {
  const auto& request = trace_->requests[index];
  const uint64_t missed = request.input_tokens - worker.sums.arrived_tokens;
  auto shared = shared_.Lock();
  ReplayLatencies& latencies = shared->result.latencies;
  latencies.lookup.Record(worker.lookup);
  if (worker.hits > 0) latencies.load.Record(worker.load);
  if (worker.arrived < worker.keys.size()) latencies.save.Record(worker.save);
  shared->answered.push_back({worker.lookup, worker.sums.arrived_tokens, missed});
  ReplayTotals& totals = shared->result.totals;
  totals.Add(worker.sums);
  totals.load_time += worker.load;
  totals.save_time += worker.save;
  totals.elapsed = Clock::System().Now() - start_;
  if (settings_.keep_requests) {
    RequestOutcome& outcome = shared->result.requests[index];
    outcome = worker.Outcome();
    outcome.ended = totals.elapsed;
  }
  if (settings_.mark_every_requests == 0) return;
  if (totals.requests % settings_.mark_every_requests == 0 ||
      totals.requests == trace_->requests.size())
    shared->marks.push_back(totals);
}

void TraceReplay::ModelTtft(Shared* shared) const {
  const TtftModel& model = settings_.ttft;
  const ReplayTotals& totals = shared->result.totals;
  for (const Answered& one : shared->answered) {
    shared->result.latencies.ttft_cached.Record(
        one.lookup + model.Load(one.arrived_tokens, totals.loaded_bytes, totals.load_time) +
        model.Compute(one.missed_tokens));
    shared->result.latencies.ttft_uncached.Record(
        model.Compute(one.arrived_tokens + one.missed_tokens));
  }
}

void ReplayTotals::Add(const ReplayTotals& one) {
  requests += one.requests;
  blocks += one.blocks;
  tokens += one.tokens;
  hit_blocks += one.hit_blocks;
  hit_tokens += one.hit_tokens;
  arrived_blocks += one.arrived_blocks;
  arrived_tokens += one.arrived_tokens;
  ideal_blocks += one.ideal_blocks;
  ideal_tokens += one.ideal_tokens;
  wrong_bytes += one.wrong_bytes;
  wrong_blocks += one.wrong_blocks;
  loaded_bytes += one.loaded_bytes;
  saved_bytes += one.saved_bytes;
  calls += one.calls;
  late_calls += one.late_calls;
  if (one.slowest.took > slowest.took) slowest = one.slowest;
  for (const auto& [kind, count] : one.errors) errors[kind] += count;
  lag_max = std::max(lag_max, one.lag_max);
}

}  // namespace ems::bench
