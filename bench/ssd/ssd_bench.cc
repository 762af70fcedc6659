#include "bench/ssd/ssd_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <utility>

#include "bench/harness/child_process.h"
#include "bench/harness/figures.h"
#include "bench/ssd/page_cache.h"

namespace ems::bench {
namespace {

constexpr uint64_t kReadBytes = kMiB;
constexpr uint64_t kSmallBytes = 4 * kKiB;
constexpr uint32_t kFioDepth = 8;
// Of one side, before the other has its turn.
constexpr uint64_t kTurnBytes = 512 * kMiB;

TimePoint Now() { return Clock::System().Now(); }

struct Stopwatch {
  const TimePoint begun = Now();
  const Duration cpu = ProcessCpuTime();
};

}  // namespace

std::string CountName(uint64_t count) {
  if (count >= 1'000'000 && count % 1'000'000 == 0) return fmt::format("{}M", count / 1'000'000);
  return fmt::format("{}", count);
}

double SsdSeries::MedianOf(const std::vector<SsdFigures>& rounds, Figure figure) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const SsdFigures& round : rounds) values.push_back(round.*figure);
  return Median(std::move(values));
}

double SsdSeries::vs_fio() const {
  std::vector<double> ours, theirs;
  for (const SsdFigures& round : ems) ours.push_back(round.gb_per_second);
  for (const SsdFigures& round : fio) theirs.push_back(round.gb_per_second);
  return theirs.empty() || theirs.size() != ours.size() ? std::nan("") : MedianRatio(ours, theirs);
}

double SsdRestart::median_seconds() const { return Median(seconds); }

SsdBench::SsdBench(SsdSettings settings, Say say)
    : settings_(std::move(settings)),
      say_(std::move(say)),
      tier_folder_(settings_.folder + "/tier"),
      fio_file_(settings_.folder + "/fio.data"),
      fio_(settings_.folder) {
  results_.fio_missing = fio_.missing();
}

SsdBench::~SsdBench() { (void)RemoveAll(); }

Status SsdBench::RunWrites() {
  for (const uint64_t bytes : settings_.write_sizes) {
    const Status written = WriteOneSize(bytes);
    EMS_RETURN_IF_ERROR(RemoveAll());
    EMS_RETURN_IF_ERROR(written);
  }
  return OkStatus();
}

Status SsdBench::WriteOneSize(uint64_t value_bytes) {
  const ValueRing ring(value_bytes);
  SsdSeries fresh{.name = "write_" + SizeName(value_bytes)};
  SsdSeries full{.name = fresh.name + "_full"};
  for (uint64_t round = 0; round < settings_.rounds; ++round) {
    EMS_RETURN_IF_ERROR(RemoveAll());
    EMS_RETURN_IF_ERROR(MakeFioFile());
    EMS_RETURN_IF_ERROR(WritePhase(ring, round, false, &fresh));
    EMS_RETURN_IF_ERROR(WritePhase(ring, round, true, &full));
  }
  results_.series.push_back(std::move(fresh));
  results_.series.push_back(std::move(full));
  return OkStatus();
}

// The figures of both sides so far in one round.
struct SsdBench::Turns {
  struct Side {
    uint64_t bytes = 0, counted_bytes = 0;
    double seconds = 0, cpu_seconds = 0;
    std::vector<double> p50_us{}, p99_us{};  // of reads, a turn each

    void Add(uint64_t moved, const Stopwatch& watch) {
      bytes += moved;
      seconds += SecondsSince(watch.begun);
      cpu_seconds += Seconds(ProcessCpuTime() - watch.cpu);
    }
    void Add(const std::optional<FioFigures>& ran) {
      if (!ran) return;
      const double gigabytes = static_cast<double>(ran->bytes) / 1e9;
      bytes += ran->bytes;
      counted_bytes += ran->counted_bytes;
      seconds += gigabytes / ran->gb_per_second;
      cpu_seconds += gigabytes * ran->cpu_per_gb;
      p50_us.push_back(ran->p50_us);
      p99_us.push_back(ran->p99_us);
    }
    SsdFigures Figures() const {
      const double gigabytes = static_cast<double>(bytes) / 1e9;
      return {gigabytes / seconds, Median(p50_us), Median(p99_us), cpu_seconds / gigabytes};
    }
  };
  Side ems, fio;
};

// `full`: what an earlier call has written is opened with half of the room, so that every region
// that is begun replaces one that is reclaimed.
Status SsdBench::WritePhase(const ValueRing& ring, uint64_t round, bool full, SsdSeries* series) {
  const uint64_t count = std::max<uint64_t>(1, settings_.bytes / ring.value_bytes());
  TierSize size = SizeForObjects(count, ring.value_bytes());
  if (full) size = SizeForRegions(count * ring.value_bytes() / 2, size.region_bytes);
  EMS_ASSIGN_OR_RETURN(const uint64_t written_before, WrittenBytes());
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<BenchTier> tier, BenchTier::Open(tier_folder_, size));
  FolderWatch watch(tier_folder_);
  Turns turns;
  EMS_RETURN_IF_ERROR(TakeTurns(ring, round, full ? count : 0, tier.get(), &turns));
  Remember(*tier);
  series->evicted_objects += tier->stats().writer.reclaimed_objects;
  tier.reset();
  EMS_ASSIGN_OR_RETURN(const uint64_t written_after, WrittenBytes());
  const uint64_t written = written_after - written_before - turns.fio.counted_bytes;
  series->write_amplification =
      std::max(series->write_amplification,
               static_cast<double>(written) / static_cast<double>(turns.ems.bytes));
  series->disk_bytes_max = std::max(series->disk_bytes_max, watch.Stop());
  series->capacity_bytes = size.capacity_bytes;
  Conclude(turns, round, series);
  return OkStatus();
}

Status SsdBench::TakeTurns(const ValueRing& ring, uint64_t round, uint64_t first, BenchTier* tier,
                           Turns* turns) {
  const uint64_t count = std::max<uint64_t>(1, settings_.bytes / ring.value_bytes());
  const uint64_t each = std::max<uint64_t>(1, std::min(count, kTurnBytes / ring.value_bytes()));
  for (uint64_t done = 0, turn = 0; done < count; done += each, ++turn) {
    const uint64_t objects = std::min(each, count - done);
    const uint64_t bytes = objects * ring.value_bytes();
    const FioJob job = Job(true, done * ring.value_bytes(), bytes, ring.value_bytes());
    const bool fio_first = (round + turn) % 2 == 1;
    if (fio_first) turns->fio.Add(RunFio(job));
    Settle(settings_.folder);
    const Stopwatch watch;
    EMS_RETURN_IF_ERROR(tier->Write(ring, first + done, objects));
    turns->ems.Add(bytes, watch);
    if (!fio_first) turns->fio.Add(RunFio(job));
  }
  return OkStatus();
}

Status SsdBench::RunReads(bool reads, bool restart) {
  EMS_RETURN_IF_ERROR(RemoveAll());
  const uint64_t count = std::max<uint64_t>(1, settings_.bytes / kReadBytes);
  const TierSize size = SizeForObjects(count, kReadBytes);
  EMS_RETURN_IF_ERROR(Fill(size, count, kReadBytes));
  if (restart)
    EMS_RETURN_IF_ERROR(
        Restart(size, {.name = fmt::format("restart_{}_1MiB", SizeName(count * kReadBytes)),
                       .objects = count,
                       .value_bytes = kReadBytes}));
  if (!reads) return RemoveAll();
  if (fio_.missing().empty()) {  // reads of what was never written would not ask the disk
    EMS_RETURN_IF_ERROR(MakeFioFile());
    (void)RunFio(Job(true, 0, count * kReadBytes, kReadBytes));
  }
  EMS_ASSIGN_OR_RETURN(auto tier, BenchTier::Open(tier_folder_, size));
  EMS_RETURN_IF_ERROR(ReadOnce(tier.get(), count));
  for (const uint32_t depth : settings_.depths) {
    SsdSeries series{
        .name = fmt::format("read_1MiB_depth{}", depth), .write = false, .depth = depth};
    for (uint64_t round = 0; round < settings_.rounds; ++round)
      EMS_RETURN_IF_ERROR(ReadRound(tier.get(), round, depth, &series));
    results_.series.push_back(std::move(series));
  }
  tier.reset();
  return RemoveAll();
}

// All that both sides have, once and unmeasured: caches below this machine, if there are any, would
// otherwise know what was written last, which is fio's.
Status SsdBench::ReadOnce(BenchTier* tier, uint64_t count) {
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  LatencyRecorder unused;
  for (uint64_t done = 0; done < count; done += kTurnBytes / kReadBytes) {
    const uint64_t objects = std::min(count - done, kTurnBytes / kReadBytes);
    const auto first = numbers.begin() + static_cast<int64_t>(done);
    EMS_RETURN_IF_ERROR(
        tier->Read({first, first + static_cast<int64_t>(objects)}, kReadBytes, kFioDepth, &unused));
    (void)RunFio(Job(false, done * kReadBytes, objects * kReadBytes, kReadBytes));
  }
  return OkStatus();
}

// Half of the objects, each once, in an order of its own; quantiles are medians of the turns'.
Status SsdBench::ReadRound(BenchTier* tier, uint64_t round, uint32_t depth, SsdSeries* series) {
  const uint64_t count = std::max<uint64_t>(1, settings_.bytes / kReadBytes);
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  std::mt19937_64 random(settings_.seed + uint64_t{1000} * depth + round);
  std::shuffle(numbers.begin(), numbers.end(), random);
  numbers.resize(std::max<uint64_t>(1, count / 2));
  Turns turns;
  for (uint64_t done = 0, turn = 0; done < numbers.size(); done += kTurnBytes / kReadBytes) {
    const std::vector<uint64_t> these(
        numbers.begin() + static_cast<int64_t>(done),
        numbers.begin() +
            static_cast<int64_t>(std::min(numbers.size(), done + kTurnBytes / kReadBytes)));
    FioJob job = Job(false, 0, count * kReadBytes, kReadBytes);
    job.total_bytes = these.size() * kReadBytes;
    job.depth = depth;
    const bool fio_first = (round + turn++) % 2 == 1;
    if (fio_first) turns.fio.Add(RunFio(job));
    LatencyRecorder latencies;
    Settle(settings_.folder);
    const Stopwatch watch;
    EMS_RETURN_IF_ERROR(tier->Read(these, kReadBytes, depth, &latencies));
    turns.ems.Add(these.size() * kReadBytes, watch);
    turns.ems.p50_us.push_back(latencies.p50_ms() * 1000);
    turns.ems.p99_us.push_back(latencies.p99_ms() * 1000);
    if (!fio_first) turns.fio.Add(RunFio(job));
  }
  Conclude(turns, round, series);
  return OkStatus();
}

Status SsdBench::RunSmallRestart() {
  EMS_RETURN_IF_ERROR(RemoveAll());
  const uint64_t count = settings_.restart_objects;
  const TierSize size = SizeForObjects(count, kSmallBytes);
  EMS_RETURN_IF_ERROR(Fill(size, count, kSmallBytes));
  EMS_RETURN_IF_ERROR(Restart(size, {.name = fmt::format("restart_{}_4KiB", CountName(count)),
                                     .objects = count,
                                     .value_bytes = kSmallBytes}));
  return RemoveAll();
}

// A tier of its own with objects 0 … count - 1, closed again.
Status SsdBench::Fill(const TierSize& size, uint64_t count, uint64_t value_bytes) {
  const ValueRing ring(value_bytes);
  EMS_ASSIGN_OR_RETURN(const auto tier, BenchTier::Open(tier_folder_, size));
  EMS_RETURN_IF_ERROR(tier->Write(ring, 0, count));
  Remember(*tier);
  return OkStatus();
}

Status SsdBench::Restart(const TierSize& size, SsdRestart restart) {
  for (uint64_t round = 0; round < settings_.rounds; ++round) {
    const std::string dropped = DropPageCache(tier_folder_, settings_.drop_whole_page_cache);
    EMS_ASSIGN_OR_RETURN(const auto tier, BenchTier::Open(tier_folder_, size));
    const uint64_t found = tier->stats().recovered_objects;
    if (found != restart.objects)
      return Error(StatusCode::kUnavailable, "{}: {} of {} objects came back", restart.name, found,
                   restart.objects);
    restart.seconds.push_back(tier->open_seconds());
    say_(fmt::format("round {}  {:<24}  open in {:.3f} s, page cache dropped: {}", round + 1,
                     restart.name, tier->open_seconds(), dropped));
  }
  results_.restarts.push_back(std::move(restart));
  return OkStatus();
}

// Moves all of a part of fio's file.
FioJob SsdBench::Job(bool write, uint64_t offset, uint64_t bytes, uint64_t block_bytes) const {
  return {.write = write,
          .path = fio_file_,
          .offset_bytes = offset,
          .part_bytes = bytes,
          .total_bytes = bytes,
          .block_bytes = block_bytes,
          .depth = kFioDepth};
}

Status SsdBench::MakeFioFile() {
  if (!fio_.missing().empty()) return OkStatus();
  return PreallocateFile(fio_file_, settings_.bytes);
}

// One that fails is missing from then on: what is measured is the tier.
std::optional<FioFigures> SsdBench::RunFio(const FioJob& job) {
  if (!results_.fio_missing.empty()) return std::nullopt;
  Settle(settings_.folder);
  const Result<FioFigures> ran = fio_.Run(job);
  if (!ran.ok()) {
    results_.fio_missing = std::string(Message(ran.status()));
    results_.fio_failed = true;
    return std::nullopt;
  }
  results_.fio_engine = fio_.engine();
  return *ran;
}

void SsdBench::Conclude(const Turns& turns, uint64_t round, SsdSeries* into) {
  into->ems.push_back(turns.ems.Figures());
  if (results_.fio_missing.empty()) into->fio.push_back(turns.fio.Figures());
  const SsdSeries& series = *into;
  const auto figures = [&](const SsdFigures& of) {
    std::string text = fmt::format("{:.3f} GB/s, {:.3f} CPU s/GB", of.gb_per_second, of.cpu_per_gb);
    if (!series.write) text += fmt::format(", p50 {:.0f} us, p99 {:.0f} us", of.p50_us, of.p99_us);
    return text;
  };
  std::string line =
      fmt::format("round {}  {:<24}  EMS {}", round + 1, series.name, figures(series.ems.back()));
  if (series.fio.size() == series.ems.size())
    line += fmt::format("  fio {}  ratio {:.3f}", figures(series.fio.back()),
                        series.ems.back().gb_per_second / series.fio.back().gb_per_second);
  say_(line);
}

void SsdBench::Remember(const BenchTier& tier) {
  const ssd::TierStats stats = tier.stats();
  results_.io_engine = stats.io_engine;
  results_.direct_io = stats.direct_io;
}

Status SsdBench::RemoveAll() const {
  std::error_code error;
  std::filesystem::remove_all(tier_folder_, error);
  if (error)
    return Error(StatusCode::kUnavailable, "cannot remove {}: {}", tier_folder_, error.message());
  std::filesystem::remove(fio_file_, error);
  return OkStatus();
}

}  // namespace ems::bench
