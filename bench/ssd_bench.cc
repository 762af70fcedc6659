#include "bench/ssd_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <utility>

#include "bench/report.h"
#include "bench/store_bench.h"

namespace ems::bench {
namespace {

constexpr uint64_t kReadBytes = kMiB;
constexpr uint64_t kSmallBytes = 4 * kKiB;
constexpr uint32_t kFioWriteDepth = 8;

TimePoint Now() { return Clock::System().Now(); }

SsdFigures FiguresOf(uint64_t bytes, Duration wall, Duration cpu) {
  SsdFigures figures;
  figures.gb_per_second = GbPerSecond(bytes, wall);
  figures.cpu_per_gb =
      std::chrono::duration<double>(cpu).count() / (static_cast<double>(bytes) / 1e9);
  return figures;
}

}  // namespace

std::string SizeName(uint64_t bytes) {
  std::string name = FormatBytes(bytes);
  std::erase(name, ' ');
  return name;
}

std::string CountName(uint64_t count) {
  if (count >= 1'000'000 && count % 1'000'000 == 0) return fmt::format("{}M", count / 1'000'000);
  return fmt::format("{}", count);
}

double SsdLane::MedianOf(const std::vector<SsdFigures>& rounds, Figure figure) {
  std::vector<double> values;
  for (const SsdFigures& round : rounds) values.push_back(round.*figure);
  return Median(std::move(values));
}

double SsdLane::vs_fio() const {
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
  SsdLane fresh{.name = "write_" + SizeName(value_bytes)};
  SsdLane full{.name = fresh.name + "_full"};
  for (uint64_t round = 0; round < settings_.rounds; ++round) {
    EMS_RETURN_IF_ERROR(RemoveAll());
    EMS_RETURN_IF_ERROR(MakeFioFile());
    EMS_RETURN_IF_ERROR(WritePhase(ring, round, false, &fresh));
    EMS_RETURN_IF_ERROR(WritePhase(ring, round, true, &full));
  }
  results_.lanes.push_back(std::move(fresh));
  results_.lanes.push_back(std::move(full));
  return OkStatus();
}

Status SsdBench::WritePhase(const ValueRing& ring, uint64_t round, bool full, SsdLane* lane) {
  const FioJob job{.write = true,
                   .path = fio_file_,
                   .file_bytes = settings_.bytes,
                   .total_bytes = settings_.bytes,
                   .block_bytes = ring.value_bytes(),
                   .depth = kFioWriteDepth};
  const bool fio_first = (round + (full ? 1 : 0)) % 2 == 1;
  if (fio_first) EMS_RETURN_IF_ERROR(RunFio(job, lane));
  EMS_ASSIGN_OR_RETURN(const SsdFigures figures, WriteTier(ring, full, lane));
  lane->ems.push_back(figures);
  if (!fio_first) EMS_RETURN_IF_ERROR(RunFio(job, lane));
  Note(*lane, round);
  return OkStatus();
}

// `full`: what an earlier call has written is opened with half of the room, so that every region
// that is begun is one that is given up.
Result<SsdFigures> SsdBench::WriteTier(const ValueRing& ring, bool full, SsdLane* lane) {
  const uint64_t count = std::max<uint64_t>(1, settings_.bytes / ring.value_bytes());
  const uint64_t bytes = count * ring.value_bytes();
  TierSize size = SizeForObjects(count, ring.value_bytes());
  if (full) size = SizeForRegions(bytes / 2, size.region_bytes);
  Settle(settings_.folder);
  EMS_ASSIGN_OR_RETURN(const uint64_t written_before, WrittenBytes());
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<BenchTier> tier, BenchTier::Open(tier_folder_, size));
  FolderWatch watch(tier_folder_);
  const TimePoint begun = Now();
  const Duration cpu = ProcessCpuTime();
  EMS_RETURN_IF_ERROR(tier->Write(ring, full ? count : 0, count));
  const SsdFigures figures = FiguresOf(bytes, Now() - begun, ProcessCpuTime() - cpu);
  Remember(*tier);
  lane->evicted_objects += tier->stats().writer.reclaimed_objects;
  tier.reset();
  // No child has been waited for meanwhile: what it wrote would count.
  EMS_ASSIGN_OR_RETURN(const uint64_t written_after, WrittenBytes());
  lane->write_amplification =
      std::max(lane->write_amplification,
               static_cast<double>(written_after - written_before) / static_cast<double>(bytes));
  lane->disk_bytes_max = std::max(lane->disk_bytes_max, watch.Stop());
  lane->capacity_bytes = size.capacity_bytes;
  return figures;
}

Status SsdBench::RunReads(bool reads, bool restart) {
  EMS_RETURN_IF_ERROR(RemoveAll());
  const uint64_t count = std::max<uint64_t>(1, settings_.bytes / kReadBytes);
  const TierSize size = SizeForObjects(count, kReadBytes);
  {
    const ValueRing ring(kReadBytes);
    EMS_ASSIGN_OR_RETURN(const auto tier, BenchTier::Open(tier_folder_, size));
    EMS_RETURN_IF_ERROR(tier->Write(ring, 0, count));
    Remember(*tier);
  }
  if (restart) {
    SsdRestart opened{.name = fmt::format("restart_{}_1MiB", SizeName(count * kReadBytes)),
                      .objects = count,
                      .value_bytes = kReadBytes};
    EMS_RETURN_IF_ERROR(Restart(size, &opened));
  }
  if (!reads) return RemoveAll();
  if (fio_.missing().empty()) {  // reads of what was never written would not ask the disk
    EMS_RETURN_IF_ERROR(MakeFioFile());
    SsdLane unused;
    EMS_RETURN_IF_ERROR(RunFio({.write = true,
                                .path = fio_file_,
                                .file_bytes = count * kReadBytes,
                                .total_bytes = count * kReadBytes,
                                .block_bytes = kReadBytes,
                                .depth = kFioWriteDepth},
                               &unused));
  }
  EMS_ASSIGN_OR_RETURN(auto tier, BenchTier::Open(tier_folder_, size));
  for (const uint32_t depth : settings_.depths) {
    SsdLane lane{.name = fmt::format("read_1MiB_depth{}", depth), .write = false};
    for (uint64_t round = 0; round < settings_.rounds; ++round)
      EMS_RETURN_IF_ERROR(ReadRound(tier.get(), round, depth, &lane));
    results_.lanes.push_back(std::move(lane));
  }
  tier.reset();
  return RemoveAll();
}

// Half of the objects, each once, in an order of its own.
Status SsdBench::ReadRound(BenchTier* tier, uint64_t round, uint32_t depth, SsdLane* lane) {
  const uint64_t count = std::max<uint64_t>(1, settings_.bytes / kReadBytes);
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  std::mt19937_64 random(settings_.seed + 1000 * depth + round);
  std::shuffle(numbers.begin(), numbers.end(), random);
  numbers.resize(std::max<uint64_t>(1, count / 2));
  const uint64_t bytes = numbers.size() * kReadBytes;
  const FioJob job{.write = false,
                   .path = fio_file_,
                   .file_bytes = count * kReadBytes,
                   .total_bytes = bytes,
                   .block_bytes = kReadBytes,
                   .depth = depth};
  const bool fio_first = round % 2 == 1;
  if (fio_first) EMS_RETURN_IF_ERROR(RunFio(job, lane));
  LatencyRecorder latencies;
  Settle(settings_.folder);
  const TimePoint begun = Now();
  const Duration cpu = ProcessCpuTime();
  EMS_RETURN_IF_ERROR(tier->Read(numbers, kReadBytes, depth, &latencies));
  SsdFigures figures = FiguresOf(bytes, Now() - begun, ProcessCpuTime() - cpu);
  figures.p50_us = latencies.p50_ms() * 1000;
  figures.p99_us = latencies.p99_ms() * 1000;
  lane->ems.push_back(figures);
  if (!fio_first) EMS_RETURN_IF_ERROR(RunFio(job, lane));
  Note(*lane, round);
  return OkStatus();
}

Status SsdBench::RunSmallRestart() {
  EMS_RETURN_IF_ERROR(RemoveAll());
  const uint64_t count = settings_.restart_objects;
  const TierSize size = SizeForObjects(count, kSmallBytes);
  {
    const ValueRing ring(kSmallBytes);
    EMS_ASSIGN_OR_RETURN(const auto tier, BenchTier::Open(tier_folder_, size));
    EMS_RETURN_IF_ERROR(tier->Write(ring, 0, count));
    Remember(*tier);
  }
  SsdRestart opened{.name = fmt::format("restart_{}_4KiB", CountName(count)),
                    .objects = count,
                    .value_bytes = kSmallBytes};
  EMS_RETURN_IF_ERROR(Restart(size, &opened));
  return RemoveAll();
}

Status SsdBench::Restart(const TierSize& size, SsdRestart* restart) {
  for (uint64_t round = 0; round < settings_.rounds; ++round) {
    EMS_ASSIGN_OR_RETURN(const auto tier, BenchTier::Open(tier_folder_, size));
    const uint64_t found = tier->stats().recovered_objects;
    if (found != restart->objects)
      return Error(StatusCode::kUnavailable, "{}: {} of {} objects came back", restart->name, found,
                   restart->objects);
    restart->seconds.push_back(tier->open_seconds());
    say_(fmt::format("round {}  {:<24}  open in {:.3f} s", round + 1, restart->name,
                     tier->open_seconds()));
  }
  results_.restarts.push_back(*restart);
  return OkStatus();
}

Status SsdBench::MakeFioFile() {
  if (!fio_.missing().empty()) return OkStatus();
  return PreallocateFile(fio_file_, settings_.bytes);
}

// One that fails is missing from then on: what is measured is the tier.
Status SsdBench::RunFio(const FioJob& job, SsdLane* lane) {
  if (!results_.fio_missing.empty()) return OkStatus();
  Settle(settings_.folder);
  const Result<FioFigures> ran = fio_.Run(job);
  if (!ran.ok()) {
    results_.fio_missing = std::string(Message(ran.status()));
    return OkStatus();
  }
  lane->fio.push_back({ran->gb_per_second, ran->p50_us, ran->p99_us, ran->cpu_per_gb});
  results_.fio_engine = fio_.engine();
  return OkStatus();
}

void SsdBench::Note(const SsdLane& lane, uint64_t round) const {
  const auto figures = [&](const SsdFigures& of) {
    std::string text = fmt::format("{:.3f} GB/s, {:.3f} CPU s/GB", of.gb_per_second, of.cpu_per_gb);
    if (!lane.write) text += fmt::format(", p50 {:.0f} us, p99 {:.0f} us", of.p50_us, of.p99_us);
    return text;
  };
  std::string line =
      fmt::format("round {}  {:<24}  EMS {}", round + 1, lane.name, figures(lane.ems.back()));
  if (lane.fio.size() == lane.ems.size())
    line += fmt::format("  fio {}  ratio {:.3f}", figures(lane.fio.back()),
                        lane.ems.back().gb_per_second / lane.fio.back().gb_per_second);
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
