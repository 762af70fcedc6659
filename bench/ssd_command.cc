#include "bench/ssd_command.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/interrupt.h"
#include "bench/report.h"
#include "bench/ssd_bench.h"
#include "bench/ssd_report.h"
#include "bench/ssd_server_bench.h"
#include "common/command_line.h"
#include "fabric/socket.h"

namespace ems::bench {
namespace {

constexpr uint64_t kQuickBytes = 64 * kMiB;
constexpr uint64_t kQuickObjects = 20'000;
constexpr uint64_t kBytesLeast = 16 * kMiB;
constexpr uint64_t kValueLeast = 4 * kKiB, kValueMost = 4 * kMiB;
// Of what a lane leaves on the disk at once: tier, its index and the file of fio.
constexpr uint64_t kSpare = 512 * kMiB;
constexpr uint64_t kPutBytes = 256 * kKiB;
constexpr uint64_t kPuts = 2000, kQuickPuts = 100;

struct Flags {
  std::string folder;
  std::string programs;
  std::string bytes = "4GiB";
  std::vector<std::string> sizes = {"64KiB", "1MiB", "4MiB"};
  std::vector<uint32_t> depths = {1, 8};
  std::vector<std::string> only;
  std::string json_path;
  uint64_t rounds = 3;
  uint64_t restart_objects = 1'000'000;
  uint64_t seed = 1;
  bool quick = false;
  GateChoice gates;
  bool Wants(const std::string& lane) const {
    return only.empty() || std::find(only.begin(), only.end(), lane) != only.end();
  }
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
  for (const std::string& text : flags.sizes) {
    EMS_ASSIGN_OR_RETURN(const uint64_t size, ParseBytes(text));
    if (size < kValueLeast || size > kValueMost || size % kValueLeast != 0)
      return Error(StatusCode::kInvalidArgument, "--sizes {}: multiples of {} up to {}", text,
                   FormatBytes(kValueLeast), FormatBytes(kValueMost));
    settings.write_sizes.push_back(size);
  }
  return settings;
}

// A folder of the run's own, gone with this. Threading: one thread (holder).
class RunFolder final {
 public:
  // Errors: kInvalidArgument  `parent` is no folder that can be written to
  static Result<std::unique_ptr<RunFolder>> Make(const std::string& parent) {
    std::error_code error;
    std::string path =
        parent.empty() ? std::filesystem::temp_directory_path(error).string() : parent;
    path += "/ems-bench-ssd-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr)
      return Error(StatusCode::kInvalidArgument, "--folder: no folder {}: {}", path,
                   fabric::ErrnoText(errno));
    return std::make_unique<RunFolder>(path);
  }
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  ~RunFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

Status CheckSpace(const SsdSettings& settings) {
  uint64_t wanted = 0;
  for (const uint64_t size : settings.write_sizes)
    wanted = std::max(wanted, SizeForObjects(settings.bytes / size, size).capacity_bytes);
  wanted += settings.bytes;
  wanted =
      std::max({wanted, SsdBytesOfRestart(settings.restart_objects, 4 * kKiB),
                SsdBytesOfRestart(settings.bytes / kMiB, kMiB), SsdBytesOfPuts(kPuts, kPutBytes)}) +
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
    if (flags.Wants("put")) {
      EMS_ASSIGN_OR_RETURN(TierPuts puts, bench.Puts(flags.quick ? kQuickPuts : kPuts, kPutBytes));
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

Status MeasureAndReport(const Flags& flags, const SsdSettings& settings, Report* report) {
  report->Print(fmt::format(
      "ems-bench ssd: {} a lane in {}, {} round{}; values come from {} of memory, checksums were "
      "computed before\n",
      FormatBytes(settings.bytes), settings.folder, settings.rounds,
      settings.rounds == 1 ? "" : "s", FormatBytes(ValueRing::kRingBytes)));
  report->json()["settings"] = {{"bytes", settings.bytes},
                                {"rounds", settings.rounds},
                                {"restart_objects", settings.restart_objects},
                                {"seed", settings.seed}};
  EMS_RETURN_IF_ERROR(CheckSpace(settings));
  SsdBench bench(settings, [&](const std::string& line) {
    report->Print(line + "\n");
    (void)std::fflush(stdout);
  });
  const Status measured = Measure(flags, &bench);
  report->Print(RenderSsd(bench.results()));
  report->json().update(SsdJson(bench.results()));
  EMS_RETURN_IF_ERROR(measured);
  JudgeSsd(bench.results(), report);
  return MeasureServers(flags, settings, report);
}

// Errors: kInvalidArgument  flags that make no sense
Status Prepare(const Flags& flags, SsdSettings* settings, std::unique_ptr<RunFolder>* folder) {
  EMS_ASSIGN_OR_RETURN(*settings, SettingsOf(flags));
  EMS_ASSIGN_OR_RETURN(*folder, RunFolder::Make(flags.folder));
  settings->folder = (*folder)->path();
  return OkStatus();
}

int RunSsd(const Flags& flags) {
  SsdSettings settings;
  std::unique_ptr<RunFolder> folder;
  if (const Status prepared = Prepare(flags, &settings, &folder); !prepared.ok()) {
    fmt::print(stderr, "ems-bench ssd: {}\n", Message(prepared));
    return kExitUsage;
  }
  Report report("ssd", flags.json_path, flags.gates);
  CatchInterrupts();
  const Status status = MeasureAndReport(flags, settings, &report);
  if (!status.ok()) report.Fail(ToString(status));
  return report.Finish();
}

void AddOptions(Command* ssd, Flags* flags) {
  ssd->AddOption("--folder", &flags->folder,
                 "Where on the disk: a fresh folder in it, removed afterwards. Default: the "
                 "temporary folder");
  ssd->AddOption("--programs", &flags->programs,
                 "Folder of mp-controller and mp-server, for what needs whole servers; without it "
                 "beside this program");
  ssd->AddOption("--bytes", &flags->bytes, "Of values that each lane writes");
  ssd->AddOption("--sizes", &flags->sizes, "Of the values that are written", {.delimiter = ','});
  ssd->AddOption("--depths", &flags->depths, "Reads under way at once",
                 {.check = InRange{1, 64}, .delimiter = ','});
  ssd->AddOption("--rounds", &flags->rounds, "Of each lane; medians count",
                 {.check = InRange{1, 1000}});
  ssd->AddOption("--restart-objects", &flags->restart_objects,
                 "Objects of 4 KiB in the tier that is opened", {.check = InRange{1, 100'000'000}});
  ssd->AddOption("--seed", &flags->seed, "Of the order of reads");
  ssd->AddOption("--only", &flags->only, "Lanes to run",
                 {.check = OneOf{{"write", "read", "restart", "server", "put"}}, .delimiter = ','});
  ssd->AddOption("--json", &flags->json_path, "Write the figures to this file");
  ssd->AddFlag("--quick", &flags->quick, "Seconds only: 64 MiB and one round");
  AddGateOption(ssd, &flags->gates);
}

}  // namespace

void AddSsdCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* ssd = program->AddCommand(
      "ssd", "Measure the SSD tier beside fio, its share of the disk, and its restart");
  AddOptions(ssd, flags.get());
  ssd->SetFooter(
      "Needs no cluster: the tier runs in this process, fio as its child; whole servers, for\n"
      "`server` and `put`, are children, too. `_full`: every region\n"
      "that is begun is one that is given up. `written/value`: bytes that the kernel wrote, of "
      "the\n"
      "index as well / bytes of values. `most on disk`: allocated bytes of all files / capacity.\n"
      "Exit codes: 0 all went well; 1 an error or a failed gate; 2 usage.\n"
      "Examples:\n"
      "  ems-bench ssd --folder /mnt/nvme --gate\n"
      "  ems-bench ssd --only read --depths 1,8,32 --bytes 16GiB --json ssd.json");
  ssd->SetRun([flags] { return RunSsd(*flags); });
}

}  // namespace ems::bench
