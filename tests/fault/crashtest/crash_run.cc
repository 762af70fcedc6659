#include "tests/fault/crashtest/crash_run.h"

#include <array>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

#include "common/guarded.h"
#include "tests/fault/crashtest/crash_load.h"
#include "tests/support/cluster.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr uint64_t kCapacityMiB = 256;
constexpr uint64_t kTightMiB = 28;  // 16 for the index, 12 regions
constexpr size_t kBrokenMax = 20;
constexpr seconds kCallPatience{2};
constexpr std::array kPlaces = {"put.after_publish",    "ssd.before_write", "ssd.after_write",
                                "ssd.before_sync",      "ssd.after_sync",   "ssd.before_commit",
                                "ssd.after_commit",     "ssd.before_begin", "ssd.reclaim",
                                "fetch.before_publish", "remove.after_ssd", "ssd.reclaimed",
                                "ssd.held_due"};

uint64_t DiskBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::recursive_directory_iterator(); at.increment(error)) {
    if (at->is_regular_file(error)) bytes += at->file_size(error);
  }
  return bytes;
}

}  // namespace

// Threading: one thread drives, the load's threads share what is Guarded.
class CrashRun final {
 public:
  explicit CrashRun(const CrashOptions& options)
      : options_(options),
        random_(options.seed),
        life_(options.seed),
        load_({.threads = options.threads, .keys = options.keys, .may_be_evicted = options.tight},
              [this](const std::string& what) { Complain(what); }) {}

  Result<CrashReport> Run() {
    EMS_RETURN_IF_ERROR(Start());
    while (report_.kills < options_.kills) {
      EMS_RETURN_IF_ERROR(KillOnce());
      EMS_RETURN_IF_ERROR(CheckAll());
    }
    report_.calls = load_.calls();
    auto broken = broken_.Lock();
    report_.broken = *broken;
    return report_;
  }

 private:
  Status Start() {
    const uint64_t capacity = options_.tight ? kTightMiB : kCapacityMiB;
    Cluster::Options wanted;
    wanted.servers = 1;
    wanted.controller_flags = {"--set", "damping_ms=0", "--set", "settle_ms=10"};
    wanted.server_flags = {"--set", fmt::format("ssd.capacity_bytes={}MiB", capacity),
                           "--set", "ssd.region_bytes=1MiB",
                           "--set", "dram.bytes=64MiB",
                           "--set", "ssd.dirty_bytes_max=16MiB"};
    for (std::string& flag : NextQuiet(&life_, !options_.places.empty()))
      wanted.server_flags.push_back(std::move(flag));
    EMS_ASSIGN_OR_RETURN(cluster_, Cluster::Start(wanted));
    if (!options_.places.empty()) {
      cluster_->server(0).Kill();
      EMS_RETURN_IF_ERROR(StartArmed());
    }
    return Connect();
  }

  Status Connect() {
    client_.reset();
    EMS_ASSIGN_OR_RETURN(client_, cluster_->Connect(TransportChoice::kAuto, kCallPatience));
    return OkStatus();
  }

  // Load until the server dies, at a fail point or because it is killed; then a new start.
  Status KillOnce() {
    load_.Start(client_.get(), random_());
    const auto span = static_cast<uint64_t>((options_.run_max - options_.run_min).count());
    const Duration run = options_.run_min + Duration(random_() % span);
    Daemon& server = cluster_->server(0);
    const Duration patience =
        options_.places.empty() ? (armed_ ? 4 * run : run) : options_.place_patience;
    const Result<int> died = server.WaitExit(patience);
    if (died.ok()) ++report_.inside;
    if (!died.ok() && !options_.places.empty()) Complain("the place was not reached");
    if (!died.ok()) report_.quiet_writes += QuietWrites(client_.get(), Cluster::ServerName(0));
    server.Kill();
    ++report_.kills;
    load_.Stop();
    return StartArmed();
  }

  // Starts the server with what is to kill it next.
  Status StartArmed() {
    while (true) {
      const std::string spec = NextKill();
      armed_ = !spec.empty();
      server_note_ = armed_ ? spec : "kill -9 from outside";
      const TimePoint begin = Clock::System().Now();
      const Status started = cluster_->RestartServer(0, FlagsFor(spec));
      if (started.ok()) {
        report_.slowest_start = std::max(report_.slowest_start, Clock::System().Now() - begin);
        break;
      }
      if (!armed_) return Prefixed(started, "after " + server_note_);
      ++report_.kills;  // it has died before it was ready: that counts, too
      ++report_.inside;
    }
    EMS_RETURN_IF_ERROR(cluster_->WaitForServers(1, seconds(20)));
    return Connect();
  }

  // Empty: from outside.
  std::string NextKill() {
    const bool chosen = !options_.places.empty();
    if (report_.kills >= options_.kills) return "";
    if (!chosen && (!options_.fail_points || random_() % 2 != 0)) return "";
    const std::string place =
        chosen ? options_.places[static_cast<size_t>(report_.kills) % options_.places.size()]
               : std::string(kPlaces[random_() % kPlaces.size()]);
    return fmt::format("{}=kill@{}", place, 1 + random_() % (chosen ? 4 : 40));
  }

  std::vector<std::string> FlagsFor(const std::string& spec) {
    std::vector<std::string> flags = NextQuiet(&life_, !options_.places.empty());
    if (!spec.empty()) flags.insert(flags.end(), {"--set", "fail_points=" + spec});
    return flags;
  }

  Status CheckAll() {
    // A server that will not die answers in the end, however busy the machine is.
    EMS_ASSIGN_OR_RETURN(
        const auto checker,
        cluster_->Connect(TransportChoice::kAuto, armed_ ? kCallPatience : seconds(20)));
    const CrashLoad::Checked checked = load_.Check(checker.get(), Cluster::ServerName(0), armed_);
    report_.checks += checked.keys;
    report_.hits += checked.hits;
    const uint64_t most = (options_.tight ? kTightMiB : kCapacityMiB) * kMiB;
    const uint64_t disk = DiskBytes(cluster_->folder() + "/" + Cluster::ServerName(0) + "/ssd");
    if (disk > most) Complain(fmt::format("{} on the disk of {}", disk, most));
    return OkStatus();
  }

  void Complain(const std::string& what) {
    auto broken = broken_.Lock();
    if (broken->size() < kBrokenMax)
      broken->push_back(fmt::format("kill {} ({}): {}", report_.kills, server_note_, what));
  }

  const CrashOptions options_;
  std::mt19937_64 random_;
  uint64_t life_;  // of the server
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  Guarded<std::vector<std::string>> broken_;
  bool armed_ = false;
  std::string server_note_ = "first start";
  CrashReport report_;
  CrashLoad load_;  // stops before the client goes
};

std::vector<std::string> CrashPlaces() { return {kPlaces.begin(), kPlaces.end()}; }

Result<CrashReport> RunCrashes(const CrashOptions& options) { return CrashRun(options).Run(); }

}  // namespace ems::testing
