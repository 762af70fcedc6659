#include "bench/store/store_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/trace_payload.h"
#include "common/check.h"
#include "common/hash.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr Duration kSettleTime = std::chrono::seconds(10);
constexpr Duration kSettlePause = std::chrono::milliseconds(50);
constexpr uint64_t kLineBytes = 64;
constexpr size_t kErrorKindsMax = 16;
constexpr uint64_t kExistsPerRound = 50;

void AddError(const Status& status, std::map<std::string, uint64_t>* errors) {
  const std::string text = ToString(status);
  if (errors->size() < kErrorKindsMax || errors->contains(text)) ++(*errors)[text];
}

}  // namespace

std::string_view SectionName(Section section) {
  switch (section) {
    case Section::kStore:
      return "Store";
    case Section::kLookup:
      return "Lookup";
    case Section::kLoad:
      return "Load";
  }
  return "?";
}

void RoundSeries::AddRound(const LatencyRecorder& round_calls, Duration wall) {
  calls.Merge(round_calls);
  wall_ms.push_back(Millis(wall));
  p50_ms.push_back(round_calls.p50_ms());
}

double SectionResult::GbPerSecondOf(const RoundSeries& rounds) const {
  const double ms = Median(rounds.wall_ms);
  return ms <= 0 ? 0 : static_cast<double>(keys * value_bytes) / 1e6 / ms;
}

double SectionResult::gb_per_second() const {
  return section == Section::kLookup ? 0 : GbPerSecondOf(ems);
}

double SectionResult::ops_per_second() const {
  const double ms = Median(ems.wall_ms);
  return ms <= 0 ? 0 : static_cast<double>(keys) * 1e3 / ms;
}

double SectionResult::ms_per_key() const {
  return ems.calls.avg_ms() / static_cast<double>(std::max<uint64_t>(1, batch));
}

StoreBench::StoreBench(Client* client, std::string name_space, StoreSettings settings,
                       RawSocket* raw, CpuMeter cpu, std::function<void()> on_round)
    : client_(client),
      name_space_(std::move(name_space)),
      settings_(settings),
      raw_(raw),
      cpu_(std::move(cpu)),
      on_round_(std::move(on_round)) {}

Status StoreBench::Prepare(uint64_t value_bytes) {
  EMS_CHECK(value_bytes > 0 && settings_.keys > 0);
  value_bytes_ = value_bytes;
  stride_ = RoundUp(value_bytes, kLineBytes);
  const uint64_t keys = settings_.keys;
  values_.assign(keys * stride_, std::byte{0});
  into_.assign(keys * stride_, std::byte{0});
  keys_.clear(), lookup_keys_.clear();
  for (uint64_t i = 0; i < keys; ++i) {
    keys_.push_back(fmt::format("bench/{}/{}", value_bytes, i));
    const bool stored = i < StoredKeys();
    lookup_keys_.push_back(stored ? keys_[i] : fmt::format("bench/never-stored/{}", i));
  }
  put_items_.clear(), get_items_.clear(), lookup_items_.clear();
  for (uint64_t i = 0; i < keys; ++i) {
    put_items_.push_back({.key = keys_[i], .value = ConstBytes(Value(i)), .route_key = RouteKey()});
    get_items_.push_back({.key = keys_[i], .into = Into(i), .route_key = RouteKey()});
    lookup_items_.push_back({.key = lookup_keys_[i], .route_key = RouteKey()});
  }
  outcomes_.assign(keys, Outcome::kFailed);
  failures_.assign(keys, OkStatus());
  if (raw_ != nullptr) EMS_RETURN_IF_ERROR(raw_->Prepare(value_bytes, keys));

  FillValues();
  const Deadline settled = Deadline::After(kSettleTime);
  StopFlag pause;
  while (CallStore(0, keys) < keys) {
    if (Interrupted()) return Interruption();
    const auto failed = std::find(outcomes_.begin(), outcomes_.end(), Outcome::kFailed);
    const Status& why = failures_[static_cast<size_t>(failed - outcomes_.begin())];
    if (settled.Passed()) return Prefixed(why, "cannot store the bench's values");
    pause.WaitFor(kSettlePause);
  }
  return OkStatus();
}

uint64_t StoreBench::StoredKeys() const {
  return static_cast<uint64_t>(
      std::llround(settings_.hit_rate * static_cast<double>(settings_.keys)));
}

// What a value's bytes follow from, besides their offset: namespace, key and which Put it was.
uint64_t StoreBench::ValueId(std::string_view key, uint64_t put_id) const {
  return Hash64(AsBytes(key), Hash64(AsBytes(name_space_), put_id));
}

void StoreBench::FillValues() {
  ++put_id_;
  for (uint64_t i = 0; i < settings_.keys; ++i) {
    FillBlock(ValueId(keys_[i], put_id_), Value(i));
  }
}

Result<SectionResult> StoreBench::Run(Section section) {
  SectionResult result;
  result.section = section;
  result.value_bytes = value_bytes_;
  result.keys = settings_.keys;
  result.batch = settings_.batch;
  cpu_.Reset();
  for (uint64_t round = 0; round < settings_.warmup_rounds + settings_.rounds; ++round) {
    if (Interrupted()) return Interruption();
    const bool measured = round >= settings_.warmup_rounds;
    const bool raw_first = round % 2 == 1;  // neither side always finds the other's caches
    if (raw_first) EMS_RETURN_IF_ERROR(RunRawRound(section, measured, &result));
    EMS_RETURN_IF_ERROR(RunEmsRound(section, measured, &result));
    if (!raw_first) EMS_RETURN_IF_ERROR(RunRawRound(section, measured, &result));
    on_round_();
  }
  if (section != Section::kLookup) {
    result.cpu_seconds_per_gb = cpu_.SecondsPerGb(settings_.rounds * settings_.keys * value_bytes_);
  }
  result.cpu_client_seconds = Seconds(cpu_.client());
  result.cpu_server_seconds = Seconds(cpu_.servers());
  return result;
}

Status StoreBench::RunEmsRound(Section section, bool measured, SectionResult* result) {
  if (section == Section::kStore) FillValues();
  if (section == Section::kLoad) Spoil(into_, stride_);
  const Call call = [this, section](uint64_t first, uint64_t count) {
    if (section == Section::kStore) return CallStore(first, count);
    return section == Section::kLookup ? CallLookup(first, count) : CallLoad(first, count);
  };
  if (measured) cpu_.Start();
  const RoundTime time = RunRound(settings_.batch, settings_.threads, call);
  if (measured) cpu_.Stop();
  if (section == Section::kLookup) CheckLookup(result);
  if (section == Section::kLoad) CheckLoad(result);
  for (uint64_t i = 0; i < settings_.keys; ++i) {
    if (outcomes_[i] == Outcome::kFailed) AddError(failures_[i], &result->errors);
  }
  if (!measured) return OkStatus();
  result->ems.AddRound(time.calls, time.wall);
  result->attempted += settings_.keys;
  result->succeeded += time.succeeded;
  return OkStatus();
}

// Always key by key on one connection, whatever batch and threads are: it is the limit of one
// connection.
Status StoreBench::RunRawRound(Section section, bool measured, SectionResult* result) {
  if (raw_ == nullptr || section == Section::kLookup) return OkStatus();
  if (section == Section::kLoad) Spoil(into_, stride_);
  Status broken = OkStatus();
  const Call call = [&](uint64_t i, uint64_t count) -> uint64_t {
    const Status status =
        section == Section::kStore ? raw_->Put(i, Value(i)) : raw_->Get(i, Into(i));
    if (!status.ok()) broken = status;
    return status.ok() ? count : 0;
  };
  const RoundTime time = RunRound(1, 1, call);
  if (measured) result->raw.AddRound(time.calls, time.wall);
  return broken;
}

StoreBench::RoundTime StoreBench::RunRound(uint64_t batch, uint64_t threads,
                                           const Call& call) const {
  struct Part {
    RoundTime time;
    TimePoint start, end;
  };
  const Clock& clock = Clock::System();
  const auto run = [&](uint64_t first, uint64_t end, Part* part) {
    part->start = part->end = clock.Now();
    while (first < end) {
      const uint64_t count = std::min(batch, end - first);
      const TimePoint before = part->end;
      part->time.succeeded += call(first, count);
      part->end = clock.Now();
      part->time.calls.Record(part->end - before);
      first += count;
    }
  };
  std::vector<Part> parts(threads);
  if (threads == 1) {
    run(0, settings_.keys, parts.data());
  } else {
    std::vector<Thread> callers;
    for (uint64_t t = 0; t < threads; ++t) {
      callers.emplace_back(fmt::format("bench-{}", t), [&, t] {
        run(settings_.keys * t / threads, settings_.keys * (t + 1) / threads, &parts[t]);
      });
    }
  }
  RoundTime total;
  TimePoint start = parts[0].start, end = parts[0].end;
  for (const Part& part : parts) {
    total.calls.Merge(part.time.calls);
    total.succeeded += part.time.succeeded;
    start = std::min(start, part.start);
    end = std::max(end, part.end);
  }
  total.wall = end - start;
  return total;
}

// Notes what became of a key; true when it went well.
bool StoreBench::Count(uint64_t key, const Status& status) {
  if (status.ok()) {
    outcomes_[key] = Outcome::kOk;
  } else if (status.code() == StatusCode::kNotFound) {
    outcomes_[key] = Outcome::kMiss;
  } else {
    outcomes_[key] = Outcome::kFailed;
    failures_[key] = status;
  }
  return status.ok();
}

uint64_t StoreBench::CallStore(uint64_t first, uint64_t count) {
  const PutOptions options{.overwrite = true, .route_key = RouteKey()};
  if (count == 1) {
    return Count(first, client_->Put(keys_[first], put_items_[first].value, options)) ? 1 : 0;
  }
  uint64_t stored = 0;
  const std::vector<Status> statuses =
      client_->MultiPut(std::span(put_items_).subspan(first, count), options);
  for (uint64_t i = 0; i < count; ++i) stored += Count(first + i, statuses[i]) ? 1 : 0;
  return stored;
}

// An answer is a success, whatever it says; Outcome tells hit from miss.
uint64_t StoreBench::CallLookup(uint64_t first, uint64_t count) {
  const auto count_answer = [this](uint64_t key, const Result<bool>& found) -> uint64_t {
    Count(key, found.ok() && !*found ? Miss() : found.status());
    return found.ok() ? 1 : 0;
  };
  if (count == 1)
    return count_answer(first, client_->Exists(lookup_keys_[first], {.route_key = RouteKey()}));
  uint64_t answered = 0;
  const auto found = client_->MultiExists(std::span(lookup_items_).subspan(first, count));
  for (uint64_t i = 0; i < count; ++i) answered += count_answer(first + i, found[i]);
  return answered;
}

uint64_t StoreBench::CallLoad(uint64_t first, uint64_t count) {
  const auto count_value = [this](uint64_t key, const Result<uint64_t>& bytes) -> uint64_t {
    if (bytes.ok() && *bytes != value_bytes_) {
      Count(key, Error(StatusCode::kDataLoss, "{} bytes came back, {} were stored", *bytes,
                       value_bytes_));
      return 0;
    }
    return Count(key, bytes.status()) ? 1 : 0;
  };
  if (count == 1)
    return count_value(
        first, client_->Get(keys_[first], get_items_[first].into, {.route_key = RouteKey()}));
  uint64_t loaded = 0;
  const auto bytes = client_->MultiGet(std::span(get_items_).subspan(first, count));
  for (uint64_t i = 0; i < count; ++i) loaded += count_value(first + i, bytes[i]);
  return loaded;
}

void StoreBench::CheckLookup(SectionResult* result) const {
  result->looked_up += settings_.keys;
  for (uint64_t i = 0; i < settings_.keys; ++i) {
    const bool stored = i < StoredKeys();
    const bool found = outcomes_[i] == Outcome::kOk;
    result->expected_hits += stored ? 1 : 0;
    result->hits += found ? 1 : 0;
    if (found && !stored) ++result->wrong_bytes;
  }
}

void StoreBench::CheckLoad(SectionResult* result) const {
  result->looked_up += settings_.keys;
  for (uint64_t i = 0; i < settings_.keys; ++i) {
    ++result->expected_hits;
    if (outcomes_[i] != Outcome::kOk) continue;
    ++result->hits;
    if (!settings_.verify) continue;
    const bool right = CountWrongBytes(ValueId(keys_[i], put_id_), Into(i)) == 0;
    if (!right) ++result->wrong_bytes;
  }
}

Result<StoreBench::ExistsTimes> StoreBench::MeasureMultiExists(uint64_t keys, uint64_t rounds) {
  constexpr uint64_t kValueBytes = 64;
  std::vector<std::string> names, values;
  for (uint64_t i = 0; i < keys; ++i) {
    names.push_back(fmt::format("bench/exists/{}", i));
    values.emplace_back(kValueBytes, '\0');
    FillBlock(ValueId(names.back(), 1), std::as_writable_bytes(std::span(values.back())));
  }
  std::vector<PutItem> puts;
  std::vector<KeyItem> items;
  for (uint64_t i = 0; i < keys; ++i) {
    puts.push_back({.key = names[i], .value = std::string_view(values[i])});
    items.push_back({.key = names[i]});
  }
  for (const Status& status : client_->MultiPut(puts, {.overwrite = true})) {
    if (!status.ok()) return Prefixed(status, "cannot store the keys for MultiExists");
  }
  const Clock& clock = Clock::System();
  ExistsTimes times{.found = keys};
  LatencyRecorder single;
  std::vector<double> multi_ms;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (Interrupted()) return Interruption();
    for (uint64_t i = 0; i < kExistsPerRound; ++i) {
      const TimePoint before = clock.Now();
      EMS_RETURN_IF_ERROR(client_->Exists(names[(round * kExistsPerRound + i) % keys]).status());
      single.Record(clock.Now() - before);
    }
    const TimePoint before = clock.Now();
    const std::vector<Result<bool>> found = client_->MultiExists(items);
    multi_ms.push_back(Millis(clock.Now() - before));
    const auto present = std::count_if(found.begin(), found.end(),
                                       [](const Result<bool>& f) { return f.ok() && *f; });
    times.found = std::min(times.found, static_cast<uint64_t>(present));
  }
  times.single_ms = single.p50_ms();
  times.multi_ms = Median(std::move(multi_ms));
  return times;
}

}  // namespace ems::bench
