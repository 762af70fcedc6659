#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figures.h"
#include "bench/harness/scratch_folder.h"
#include "bench/ssd/ssd_bench.h"
#include "bench/ssd/ssd_report.h"
#include "bench/ssd/ssd_server_bench.h"

namespace ems::bench {
namespace {

constexpr uint64_t kQuickBytes = 64 * kMiB;
constexpr uint64_t kQuickObjects = 20'000;
constexpr uint64_t kBytesLeast = 16 * kMiB;
constexpr uint64_t kValueLeast = 4 * kKiB, kValueMost = 4 * kMiB;
// Of what a series leaves on the disk at once: tier, its index and the file of fio.
constexpr uint64_t kSpare = 512 * kMiB;
constexpr std::array<uint64_t, 3> kPutSizes = {64 * kKiB, 256 * kKiB, kMiB};
constexpr uint64_t kPutsOfOneSize = 2000, kQuickPuts = 100;
// Of the values of one size, so that they fit into the servers' DRAM.
constexpr uint64_t kPutBytesMax = 512 * kMiB;

struct Flags : CommonFlags {
  std::string folder = std::filesystem::temp_directory_path().string();
  std::string programs;
  std::string bytes = "4GiB";
  std::vector<std::string> sizes = {"64KiB", "1MiB", "4MiB"};
  std::vector<uint32_t> depths = {1, 8};
  std::vector<std::string> only;
  uint64_t rounds = 3;
  uint64_t restart_objects = 1'000'000;
  uint64_t seed = 1;
  bool Wants(const std::string& part) const {
    return only.empty() || std::find(only.begin(), only.end(), part) != only.end();
  }
};

// Flags as the run needs them.
struct Plan {
  Flags flags;
  SsdSettings settings;
  std::unique_ptr<ScratchFolder> folder;
};

Result<SsdSettings> SettingsOf(const Flags& flags) {
  SsdSettings settings;
  EMS_ASSIGN_OR_RETURN(settings.bytes, ParseBytes(flags.bytes));
  settings.rounds = flags.rounds;
  settings.restart_objects = flags.restart_objects;
  settings.depths = flags.depths;
  settings.seed = flags.seed;
  settings.drop_whole_page_cache = !flags.quick;  // others on the machine would feel it
  if (flags.quick) {
    settings.bytes = std::min(settings.bytes, kQuickBytes);
    settings.rounds = 1;
    settings.restart_objects = std::min(settings.restart_objects, kQuickObjects);
  }
  if (settings.bytes < kBytesLeast)
    return Error(StatusCode::kInvalidArgument, "--bytes {}: {} at least", flags.bytes,
                 FormatBytes(kBytesLeast));
  EMS_ASSIGN_OR_RETURN(settings.write_sizes,
                       ParseSizes("--sizes", flags.sizes, kValueLeast, kValueMost, kValueLeast));
  return settings;
}

uint64_t PutsOf(uint64_t value_bytes) {
  return std::min(kPutsOfOneSize, kPutBytesMax / value_bytes);
}

Status CheckSpace(const SsdSettings& settings) {
  uint64_t wanted = 0;
  for (const uint64_t size : settings.write_sizes)
    wanted = std::max(wanted, SizeForObjects(settings.bytes / size, size).capacity_bytes);
  wanted += settings.bytes;
  for (const uint64_t size : kPutSizes)
    wanted = std::max(wanted, SsdBytesOfPuts(PutsOf(size), size));
  wanted = std::max({wanted, SsdBytesOfRestart(settings.restart_objects, 4 * kKiB),
                     SsdBytesOfRestart(settings.bytes / kMiB, kMiB)}) +
           kSpare;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(settings.folder, error);
  if (error || space.available >= wanted) return OkStatus();
  return Error(StatusCode::kResourceExhausted, "{} has {} free, the run needs {}", settings.folder,
               FormatBytes(space.available), FormatBytes(wanted));
}

Status Measure(const Flags& flags, SsdBench* bench) {
  if (flags.Wants("write")) EMS_RETURN_IF_ERROR(bench->RunWrites());
  const bool reads = flags.Wants("read"), restart = flags.Wants("restart");
  if (reads || restart) EMS_RETURN_IF_ERROR(bench->RunReads(reads, restart));
  return restart ? bench->RunSmallRestart() : OkStatus();
}

// What needs whole servers.
Status MeasureServers(const Flags& flags, const SsdSettings& settings, Report* report) {
  if (!flags.Wants("server") && !flags.Wants("put")) return OkStatus();
  SsdServerBench bench(settings.folder, flags.programs, settings.drop_whole_page_cache,
                       [&](const std::string& line) { report->Print(line + "\n"); });
  SsdServerResults results;
  const auto measure = [&]() -> Status {
    for (const uint64_t size : kPutSizes) {
      if (!flags.Wants("put")) break;
      EMS_ASSIGN_OR_RETURN(TierPuts puts,
                           bench.Puts(flags.quick ? kQuickPuts : PutsOf(size), size));
      results.puts.push_back(std::move(puts));
    }
    if (!flags.Wants("server")) return OkStatus();
    const uint64_t large = settings.bytes / kMiB, small = settings.restart_objects;
    EMS_ASSIGN_OR_RETURN(
        ServerRestart restart,
        bench.Restart(fmt::format("server_restart_{}_1MiB", SizeName(large * kMiB)), large, kMiB));
    results.restarts.push_back(std::move(restart));
    EMS_ASSIGN_OR_RETURN(
        restart,
        bench.Restart(fmt::format("server_restart_{}_4KiB", CountName(small)), small, 4 * kKiB));
    results.restarts.push_back(std::move(restart));
    return OkStatus();
  };
  const Status measured = measure();
  report->Print(RenderSsdServers(results));
  report->json().update(SsdServersJson(results));
  JudgeSsdServers(results, report);
  return measured;
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  const SsdSettings& settings = plan.settings;
  report->Print(fmt::format(
      "ems-bench ssd: {} a series in {}, {} round{}; values come from {} of memory, checksums were "
      "computed before\n",
      FormatBytes(settings.bytes), settings.folder, settings.rounds, Plural(settings.rounds),
      FormatBytes(ValueRing::kRingBytes)));
  report->json()["settings"] = {{"bytes", settings.bytes},
                                {"rounds", settings.rounds},
                                {"restart_objects", settings.restart_objects},
                                {"seed", settings.seed}};
  EMS_RETURN_IF_ERROR(CheckSpace(settings));
  SsdBench bench(settings, [&](const std::string& line) { report->Print(line + "\n"); });
  const Status measured = Measure(plan.flags, &bench);
  report->Print(RenderSsd(bench.results()));
  report->json().update(SsdJson(bench.results()));
  EMS_RETURN_IF_ERROR(measured);
  JudgeSsd(bench.results(), report);
  return MeasureServers(plan.flags, settings, report);
}

// Errors: kInvalidArgument  flags that make no sense
Result<Plan> MakePlan(const Flags& flags) {
  Plan plan{.flags = flags, .settings = {}, .folder = {}};
  EMS_ASSIGN_OR_RETURN(plan.settings, SettingsOf(flags));
  EMS_ASSIGN_OR_RETURN(plan.folder, ScratchFolder::Make(flags.folder));
  plan.settings.folder = plan.folder->path();
  return plan;
}

void AddOptions(Command* ssd, Flags* flags) {
  ssd->AddOption("--folder", &flags->folder,
                 "Where on the disk: a fresh folder in it, removed afterwards");
  ssd->AddOption("--programs", &flags->programs,
                 "Folder of mp-controller and mp-server, for what needs whole servers; without it "
                 "beside this program");
  ssd->AddOption("--bytes", &flags->bytes, "Of values that each series writes");
  ssd->AddOption("--sizes", &flags->sizes, "Of the values that are written", {.delimiter = ','});
  ssd->AddOption("--depths", &flags->depths, "Concurrent reads",
                 {.check = InRange{1, 64}, .delimiter = ','});
  ssd->AddOption("--rounds", &flags->rounds, "Of each series; medians count",
                 {.check = InRange{1, 1000}});
  ssd->AddOption("--restart-objects", &flags->restart_objects,
                 "Objects of 4 KiB in the tier that is opened", {.check = InRange{1, 100'000'000}});
  ssd->AddOption("--seed", &flags->seed, "Of the order of reads");
  ssd->AddOption("--only", &flags->only, "Series to run",
                 {.check = OneOf{{"write", "read", "restart", "server", "put"}}, .delimiter = ','});
}

}  // namespace

void AddSsdCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* ssd = program->AddCommand(
      "ssd", "Measure the SSD tier beside fio, its share of the disk, and its restart");
  AddOptions(ssd, flags.get());
  AddCommonOptions(
      ssd, flags.get(),
      {.quick = "Seconds only: 64 MiB and one round",
       .about = "Needs no cluster: the tier runs in this process, fio as its child; whole servers, "
                "for\n`server` and `put`, are children, too. `_full`: every region\nthat is begun "
                "is one "
                "that is reclaimed. `written/value`: bytes that the kernel wrote, of the\nindex as "
                "well / "
                "bytes of values. `most on disk`: allocated bytes of all files / capacity.",
       .failures = "an error or a failed gate",
       .examples = {"ssd --folder /mnt/nvme --gate",
                    "ssd --only read --depths 1,8,32 --bytes 16GiB --json ssd.json"}});
  ssd->SetRun([=] { return RunPlanned("ssd", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
