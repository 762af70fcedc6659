#include "bench/sides/side_bench.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/trace_payload.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr int kStormWindows = 5;  // the figure is their median
constexpr Duration kSettleTime = std::chrono::seconds(10);
constexpr Duration kSettlePause = std::chrono::milliseconds(50);
constexpr uint64_t kReadBackEach = 16;  // of the values put, one in this many is read again
constexpr uint64_t kLookupsPerRound = 64;
// Callers wait here until all of them run and one says go: what making threads costs is not
// measured.
class StartLine final {
 public:
  void Wait() {
    waiting_.fetch_add(1, std::memory_order_acq_rel);
    while (!go_.load(std::memory_order_acquire)) sched_yield();
  }
  void AwaitAll(uint32_t others) {
    while (waiting_.load(std::memory_order_acquire) < others) sched_yield();
  }
  void Go() { go_.store(true, std::memory_order_release); }

 private:
  std::atomic<uint32_t> waiting_{0};
  std::atomic<bool> go_{false};
};

}  // namespace

// One side at one operation with some callers.
struct SideBench::Trial {
  Subject* subject = nullptr;
  TrialResult result;
  CpuMeter cpu;
  uint64_t buffers = 0;          // objects of a stretch
  uint64_t objects = 0;          // of a round
  uint64_t keys_per_object = 1;  // kLookup: of a call
  uint64_t next = 0;             // place in the walk
  uint64_t keys = 0, one_sided = 0;
};

// The results and times of the calls of one stretch.
struct SideBench::Timed {
  LatencyRecorder calls;
  TimePoint start, end;
  Status status = OkStatus();
  Duration wall() const { return end - start; }
};

Result<std::unique_ptr<SideBench>> SideBench::Make(SideSettings settings, uint64_t value_bytes_max,
                                                   std::function<void()> on_round) {
  std::unique_ptr<SideBench> made(new SideBench(settings, std::move(on_round)));
  const uint64_t least =
      value_bytes_max * *std::max_element(settings.threads.begin(), settings.threads.end());
  EMS_ASSIGN_OR_RETURN(made->read_ring_,
                       PageBuffer::Make(std::max(settings.read_ring_bytes, least)));
  EMS_ASSIGN_OR_RETURN(made->put_ring_, PageBuffer::Make(std::max(settings.put_ring_bytes, least)));
  return made;
}

MutableBytes SideBench::PutRing(const Subject& subject, SideOp op) const {
  const MutableBytes own = subject.PutMemory(op);
  return own.empty() ? put_ring_.bytes() : own;
}

uint64_t SideBench::ObjectsOfRound(const ValueSet& values, SideOp op) const {
  if (op == SideOp::kLookup) return kLookupsPerRound;
  if (!MovesBytes(op)) return settings_.light_calls;
  return std::clamp<uint64_t>(settings_.round_bytes / values.value_bytes(), 1,
                              settings_.round_calls_max);
}

// How many objects a stretch has.
uint64_t SideBench::BuffersFor(const ValueSet& values, const Subject& subject, SideOp op) const {
  const uint64_t objects = ObjectsOfRound(values, op);
  if (!MovesBytes(op)) return objects;
  const uint64_t ring = IsPut(op) ? PutRing(subject, op).size() : read_ring_.bytes().size();
  // A stretch that went round the objects would hold one twice.
  return std::min({objects, ring / values.value_bytes(), values.count()});
}

Stretch SideBench::MakeStretch(const ValueSet& values, const Subject& subject, SideOp op) {
  key_bytes_.clear(), keys_.clear();
  for (const uint64_t object : objects_) key_bytes_ += values.key(object);
  size_t at = 0;
  for (const uint64_t object : objects_) {
    keys_.push_back(std::string_view(key_bytes_).substr(at, values.key(object).size()));
    at += keys_.back().size();
  }
  Stretch stretch{.objects = objects_, .keys = keys_, .value_bytes = values.value_bytes()};
  if (IsGet(op)) stretch.buffers = read_ring_.bytes().data();
  if (IsPut(op)) stretch.buffers = PutRing(subject, op).data();
  return stretch;
}

Stretch SideBench::WalkOn(const ValueSet& values, const Subject& subject, SideOp op, uint64_t from,
                          uint64_t count) {
  objects_.resize(count);
  for (uint64_t i = 0; i < count; ++i) objects_[i] = values.Walk(from + i);
  return MakeStretch(values, subject, op);
}

// New content for each object: storing the same again may store nothing.
void SideBench::Fill(const ValueSet& values, const Stretch& stretch,
                     std::vector<uint32_t>* versions) {
  for (uint64_t i = 0; i < stretch.objects.size(); ++i) {
    const uint64_t object = stretch.objects[i];
    values.Fill(object, ++(*versions)[object], stretch.Buffer(i));
  }
}

// Stores every value once, in another order than that of the walk. Servers may hear of a new
// namespace a moment late.
Status SideBench::Load(const ValueSet& values, Subject* subject) {
  const SideOp op = subject->load_op();
  std::vector<uint32_t>& versions = versions_[subject];
  versions.assign(values.count(), 0);
  const uint64_t buffers = BuffersFor(values, *subject, op);
  EMS_ASSIGN_OR_RETURN(CpuMeter cpu, CpuMeter::Make({}));  // nobody asks what it says
  const Deadline settled = Deadline::After(kSettleTime);
  StopFlag pause;
  for (uint64_t from = 0; from < values.count();) {
    if (Interrupted()) return Interruption();
    const uint64_t count = std::min(buffers, values.count() - from);
    objects_.resize(count);
    std::iota(objects_.begin(), objects_.end(), from);
    const Stretch stretch = MakeStretch(values, *subject, op);
    Fill(values, stretch, &versions);
    const Timed timed = Time(subject, op, 1, 1, stretch, &cpu);
    if (timed.status.ok()) {
      from += count;
    } else if (from > 0 || settled.Passed()) {
      return Prefixed(timed.status, fmt::format("{}: storing values of {}", subject->name(),
                                                FormatBytes(values.value_bytes())));
    } else {
      pause.WaitFor(kSettlePause);
    }
  }
  return OkStatus();
}

Result<std::vector<SideBench::Trial>> SideBench::MakeTrials(
    const ValueSet& values, const std::vector<Subject*>& subjects) const {
  std::vector<Trial> trials;
  for (const SideOp op : kAllOps) {
    for (const uint32_t threads : settings_.threads) {
      for (Subject* subject : subjects) {
        const std::vector<SideOp> offered = subject->ops();
        if (std::find(offered.begin(), offered.end(), op) == offered.end()) continue;
        EMS_ASSIGN_OR_RETURN(CpuMeter cpu, CpuMeter::Make(subject->server_pids()));
        Trial trial{.subject = subject, .result = {}, .cpu = std::move(cpu)};
        trial.result.subject = subject->name();
        trial.result.op = op;
        trial.result.value_bytes = values.value_bytes();
        trial.result.threads = threads;
        trial.buffers = BuffersFor(values, *subject, op);
        trial.objects = ObjectsOfRound(values, op);
        if (op == SideOp::kLookup) trial.keys_per_object = kLookupKeys;
        if (op == SideOp::kPutBatch) {
          trial.result.batch = std::clamp<uint64_t>(trial.buffers / threads, 1, settings_.batch);
        }
        trials.push_back(std::move(trial));
      }
    }
  }
  return trials;
}

Result<std::vector<TrialResult>> SideBench::Run(const ValueSet& values,
                                                const std::vector<Subject*>& subjects) {
  versions_.clear();
  for (Subject* subject : subjects) EMS_RETURN_IF_ERROR(Load(values, subject));
  EMS_ASSIGN_OR_RETURN(std::vector<Trial> trials, MakeTrials(values, subjects));
  for (uint64_t round = 0; round < settings_.warmup_rounds + settings_.rounds; ++round) {
    const bool measured = round >= settings_.warmup_rounds;
    for (size_t i = 0; i < trials.size(); ++i) {
      if (Interrupted()) return Interruption();
      // To and fro, so that nobody always finds what the same other one left in the caches.
      Trial& trial = trials[round % 2 == 0 ? i : trials.size() - 1 - i];
      const Status ran = RunRound(values, &trial, measured);
      if (ran.ok()) continue;
      return Prefixed(ran, fmt::format("{}, {} of {}", trial.result.subject,
                                       OpName(trial.result.op), FormatBytes(values.value_bytes())));
    }
    on_round_();
  }
  std::vector<TrialResult> results;
  for (Trial& trial : trials) {
    if (!IsPut(trial.result.op)) trial.result.one_sided_share = Share(trial.one_sided, trial.keys);
    results.push_back(std::move(trial.result));
  }
  return results;
}

Status SideBench::RunRound(const ValueSet& values, Trial* trial, bool measured) {
  Subject* const subject = trial->subject;
  TrialResult& result = trial->result;
  LatencyRecorder calls;
  Duration wall{0};
  trial->cpu.Reset();
  for (uint64_t left = trial->objects; left > 0;) {
    const uint64_t count = std::min(left, trial->buffers);
    const Stretch stretch = WalkOn(values, *subject, result.op, trial->next, count);
    if (IsPut(result.op)) Fill(values, stretch, &versions_[subject]);
    if (IsGet(result.op))
      Spoil({stretch.buffers, count * stretch.value_bytes}, stretch.value_bytes);
    const uint64_t one_sided = subject->one_sided();
    const Timed timed =
        Time(subject, result.op, result.threads, result.batch, stretch, &trial->cpu);
    EMS_RETURN_IF_ERROR(timed.status);
    if (measured) {
      trial->one_sided += subject->one_sided() - one_sided;
      trial->keys += count * trial->keys_per_object;
    }
    EMS_RETURN_IF_ERROR(Check(values, subject, result.op, stretch));
    calls.Merge(timed.calls);
    wall += timed.wall();
    trial->next += count;
    left -= count;
  }
  if (!measured) return OkStatus();
  const uint64_t bytes = MovesBytes(result.op) ? trial->objects * values.value_bytes() : 0;
  const double gb = static_cast<double>(bytes) / 1e9;
  result.calls.Merge(calls);
  result.rounds.push_back(
      {.gb_per_second = GbPerSecond(bytes, wall),
       .ops_per_second =
           static_cast<double>(trial->objects * trial->keys_per_object) / Seconds(wall),
       .p50_us = calls.p50_ms() * 1e3,
       .client_cpu_per_gb = bytes == 0 ? 0 : Seconds(trial->cpu.client()) / gb,
       .server_cpu_per_gb = bytes == 0 ? 0 : Seconds(trial->cpu.servers()) / gb});
  return OkStatus();
}

SideBench::Timed SideBench::Time(Subject* subject, SideOp op, uint32_t threads, uint64_t batch,
                                 const Stretch& stretch, CpuMeter* cpu) const {
  const Clock& clock = Clock::System();
  std::vector<Timed> parts(threads);
  StartLine start_line;
  const auto run = [&](uint32_t caller) {
    Timed& part = parts[caller];
    uint64_t first = stretch.objects.size() * caller / threads;
    const uint64_t last = stretch.objects.size() * (caller + 1) / threads;
    part.start = part.end = clock.Now();
    while (first < last && part.status.ok()) {
      const uint64_t count = std::min(batch, last - first);
      const TimePoint before = part.end;
      part.status = subject->Call(op, caller, stretch, first, count);
      part.end = clock.Now();
      part.calls.Record(part.end - before);
      first += count;
    }
  };
  {
    std::vector<Thread> callers;  // joined here
    for (uint32_t t = 1; t < threads; ++t) {
      callers.emplace_back(fmt::format("bench-{}", t), [&run, &start_line, t] {
        start_line.Wait();
        run(t);
      });
    }
    start_line.AwaitAll(threads - 1);
    cpu->Start();
    start_line.Go();
    run(0);
  }
  cpu->Stop();
  for (uint32_t t = 1; t < threads; ++t) {
    parts[0].calls.Merge(parts[t].calls);
    parts[0].start = std::min(parts[0].start, parts[t].start);
    parts[0].end = std::max(parts[0].end, parts[t].end);
    if (parts[0].status.ok()) parts[0].status = parts[t].status;
  }
  return std::move(parts[0]);
}

Status SideBench::Check(const ValueSet& values, Subject* subject, SideOp op,
                        const Stretch& stretch) {
  const std::vector<uint32_t>& versions = versions_[subject];
  const auto judge = [&](uint64_t object, ConstBytes bytes) {
    if (values.Matches(object, versions[object], bytes)) return OkStatus();
    return Error(StatusCode::kDataLoss, "wrong bytes came back for {}; a cache must never do this",
                 values.key(object));
  };
  const uint64_t views_max = std::max<uint64_t>(1, settings_.round_bytes / values.value_bytes());
  for (uint64_t i = 0; i < stretch.objects.size(); ++i) {
    const uint64_t object = stretch.objects[i];
    Status right = OkStatus();
    if (IsGet(op)) {
      right = judge(object, stretch.Buffer(i));
    } else if (op == SideOp::kGetView && i < views_max) {
      Status judged = OkStatus();
      right = subject->View(object, [&](ConstBytes bytes) { judged = judge(object, bytes); });
      if (right.ok()) right = judged;
    } else if (IsPut(op) && i % kReadBackEach == 0) {
      const Stretch one{.objects = stretch.objects.subspan(i, 1),
                        .keys = stretch.keys.subspan(i, 1),
                        .buffers = read_ring_.bytes().data(),
                        .value_bytes = stretch.value_bytes};
      right = subject->Call(SideOp::kGet, 0, one, 0, 1);
      if (right.ok()) right = judge(object, one.Buffer(0));
    }
    EMS_RETURN_IF_ERROR(right);
  }
  return OkStatus();
}

Result<StormResult> SideBench::Storm(const ValueSet& values, Subject* subject) {
  const uint64_t buffers = BuffersFor(values, *subject, SideOp::kGet);
  EMS_ASSIGN_OR_RETURN(CpuMeter cpu, CpuMeter::Make(subject->server_pids()));
  const Clock& clock = Clock::System();
  CpuMeter calls = cpu;  // of the calls alone: nobody asks what it says
  uint64_t reads = 0;
  double seconds = 0;
  std::vector<double> cores;
  for (int window = 0; window < kStormWindows; ++window) {
    cpu.Reset();
    cpu.Start();
    const TimePoint start = clock.Now();
    while (clock.Now() - start < settings_.storm_time / kStormWindows) {
      if (Interrupted()) return Interruption();
      const Stretch stretch = WalkOn(values, *subject, SideOp::kGet, reads, buffers);
      EMS_RETURN_IF_ERROR(Time(subject, SideOp::kGet, 1, 1, stretch, &calls).status);
      reads += buffers;
    }
    cpu.Stop();
    const double took = Seconds(clock.Now() - start);
    cores.push_back(Seconds(cpu.servers()) / took);
    seconds += took;
  }
  // The last ones are still there.
  const Stretch last = MakeStretch(values, *subject, SideOp::kGet);
  EMS_RETURN_IF_ERROR(Check(values, subject, SideOp::kGet, last));
  return StormResult{.value_bytes = values.value_bytes(),
                     .reads_per_second = static_cast<double>(reads) / seconds,
                     .server_cores = Median(std::move(cores))};
}

}  // namespace ems::bench
