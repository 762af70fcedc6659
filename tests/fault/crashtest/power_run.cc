#include "tests/fault/crashtest/power_run.h"

#include <signal.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "cluster/controller_client.h"
#include "common/guarded.h"
#include "mp_server/lease/data_dir.h"
#include "tests/fault/crashtest/control_load.h"
#include "tests/fault/crashtest/crash_load.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/power_cut.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr const char* kRelaxed = "relaxed";
constexpr size_t kBrokenMax = 20;
constexpr size_t kLogEndBytes = 4000;
constexpr uint64_t kFillKeys = 200;
constexpr uint64_t kFillKeysMost = 20'000;  // half of what the index has room for

uint64_t SpanOf(const PowerOptions& options) {
  return static_cast<uint64_t>((options.run_max - options.run_min).count());
}

}  // namespace

// Threading: one thread drives, the loads' threads share what is Guarded.
class PowerRun final {
 public:
  explicit PowerRun(const PowerOptions& options)
      : options_(options), random_(options.seed), life_(options.seed) {
    for (const bool relaxed : {false, true}) {
      parts_.push_back(std::make_unique<Part>());
      parts_.back()->load = std::make_unique<CrashLoad>(
          CrashLoad::Options{.name_space = relaxed ? kRelaxed : "default",
                             .threads = options.threads,
                             .keys = options.keys,
                             .may_be_evicted = options.tight,
                             .may_lose_durable = relaxed || options.joins},
          [this](const std::string& what) { Complain(what); });
    }
  }

  Result<PowerReport> Run() {
    EMS_RETURN_IF_ERROR(Start());
    while (report_.cuts < options_.cuts && !IsBroken()) {
      const bool leave = options_.joins && random_() % 2 == 0;
      const Status came_back = leave ? LeaveAndJoin() : CutOnce();
      if (came_back.ok()) continue;
      Complain(ToString(came_back));
      break;
    }
    for (const auto& part : parts_) report_.calls += part->load->calls();
    report_.namespaces = control_->changes();
    auto broken = broken_.Lock();
    report_.broken = *broken;
    if (!broken->empty()) report_.logs = LogEnds();
    return report_;
  }

 private:
  struct Part {  // of the load: a namespace
    std::unique_ptr<Client> client;
    std::unique_ptr<CrashLoad> load;  // stops before the client goes
  };

  Status Start() {
    Cluster::Options wanted;
    wanted.servers = options_.joins ? 2 : 1;
    wanted.controller_flags = {"--set", "damping_ms=0", "--set", "settle_ms=10"};
    wanted.server_flags = {
        "--set", options_.tight ? "ssd.capacity_bytes=28MiB" : "ssd.capacity_bytes=256MiB",
        "--set", "ssd.region_bytes=1MiB",
        "--set", "dram.bytes=64MiB",
        "--set", "ssd.dirty_bytes_max=16MiB"};
    for (std::string& flag : NextQuiet(&life_, false))
      wanted.server_flags.push_back(std::move(flag));
    wanted.power_loss = true;
    wanted.lost_syncs = options_.lost_syncs;
    EMS_ASSIGN_OR_RETURN(cluster_, Cluster::Start(wanted));
    control_ = std::make_unique<ControlLoad>(cluster_->controller_address(),
                                             [this](const std::string& what) { Complain(what); });
    NamespaceInfo relaxed;
    relaxed.name = kRelaxed;
    relaxed.durability = Durability::kSsd;
    relaxed.relaxed_sync = true;
    ControllerClient controller(cluster_->controller_address(), "power");
    EMS_RETURN_IF_ERROR(controller.CreateNamespace(relaxed, Deadline::After(seconds(10))).status());
    return Connect();
  }

  Status Connect() {
    for (size_t i = 0; i < parts_.size(); ++i) {
      ClientOptions options;
      options.controller = cluster_->controller_address();
      options.name_space = i == 0 ? "default" : kRelaxed;
      options.op_timeout = seconds(2);
      parts_[i]->client.reset();
      EMS_ASSIGN_OR_RETURN(parts_[i]->client, Client::Connect(options));
    }
    return OkStatus();
  }

  // Load, a cut, a start, a look at everything. Errors: something does not come back
  Status CutOnce() {
    StartLoad();
    FillIndex(RunTime());
    const uint64_t dice = random_() % 8;
    const bool server = dice < 6, controller = dice >= 4;
    note_ = !controller ? "the server" : server ? "both" : "the controller";
    if (server)
      report_.quiet_writes += QuietWrites(parts_.front()->client.get(), Cluster::ServerName(0));
    if (server) cluster_->server(0).Signal(SIGKILL);
    if (controller) cluster_->controller().Signal(SIGKILL);
    StopLoad();
    ++report_.cuts;
    if (controller) EMS_RETURN_IF_ERROR(LosePower(&cluster_->controller(), &report_.controllers));
    if (server) {
      EMS_RETURN_IF_ERROR(LosePower(&cluster_->server(0), &report_.servers));
      if (!options_.joins) EMS_RETURN_IF_ERROR(CheckView());
    }
    const TimePoint begin = Clock::System().Now();
    if (controller) EMS_RETURN_IF_ERROR(cluster_->RestartController());
    control_->Check();
    if (IsBroken()) return OkStatus();  // servers may wait for what is lost
    if (server) EMS_RETURN_IF_ERROR(cluster_->RestartServer(0, NextQuiet(&life_, false)));
    report_.slowest_start = std::max(report_.slowest_start, Clock::System().Now() - begin);
    return CheckAll();
  }

  // A cut of the second server under load, which goes on until the first one has its slots and for
  // a while; then its return, after a cut of the first one or without.
  Status LeaveAndJoin() {
    StartLoad();
    FillIndex(RunTime());
    note_ = "the second server left";
    cluster_->server(1).Signal(SIGKILL);
    ++report_.cuts;
    ++report_.joins;
    EMS_RETURN_IF_ERROR(LosePower(&cluster_->server(1), &report_.servers));
    EMS_RETURN_IF_ERROR(cluster_->WaitForServers(1, seconds(20)));
    FillIndex(RunTime());
    const bool both = random_() % 2 == 0;
    if (both) cluster_->server(0).Signal(SIGKILL);
    StopLoad();
    control_->Check();
    if (both) {
      EMS_RETURN_IF_ERROR(LosePower(&cluster_->server(0), &report_.servers));
      EMS_RETURN_IF_ERROR(cluster_->RestartServer(0, NextQuiet(&life_, false)));
    }
    EMS_RETURN_IF_ERROR(cluster_->RestartServer(1, NextQuiet(&life_, false)));
    return CheckAll();
  }

  Duration RunTime() { return options_.run_min + Duration(random_() % SpanOf(options_)); }
  void StartLoad() {
    for (const auto& part : parts_) part->load->Start(part->client.get(), random_());
    control_->Start();
  }
  void StopLoad() {
    for (const auto& part : parts_) part->load->Stop();
    control_->Stop();
  }

  Status CheckAll() {
    EMS_RETURN_IF_ERROR(WaitUntilServed());
    for (const auto& part : parts_) {
      const CrashLoad::Checked checked =
          part->load->Check(part->client.get(), Cluster::ServerName(0), false);
      report_.checks += checked.keys;
      report_.hits += checked.hits;
    }
    return OkStatus();
  }

  Status LosePower(Daemon* daemon, int* count) {
    daemon->Kill();
    ++*count;
    const std::string folder = cluster_->folder() + "/" + daemon->options().name;
    EMS_ASSIGN_OR_RETURN(const PowerCutReport cut, CutPower(folder, {.seed = random_()}));
    report_.unsynced += cut.unsynced;
    report_.lost += cut.lost;
    note_ += fmt::format("; {}: {}", daemon->options().name, cut.ToText());
    if (cut.changes > 0) return OkStatus();
    return Error(StatusCode::kInternal, "nothing that it did was recorded");
  }

  // Before the server installs another one.
  Status CheckView() {
    const std::string path = cluster_->folder() + "/" + Cluster::ServerName(0);
    EMS_ASSIGN_OR_RETURN(const server::DataDir folder, server::DataDir::Open(path));
    const ViewVersion kept = folder.highest_view().version;
    const ViewVersion seen = control_->installed();
    if (kept < seen) {
      Complain(fmt::format("data_dir has view ({}, {}), ({}, {}) had been installed", kept.term(),
                           kept.epoch(), seen.term(), seen.epoch()));
    }
    return OkStatus();
  }

  // Small values, many at once, for as long: the index has to give its logs up and to merge tables
  // while power is cut. Other keys each time, for overwritten ones may be held back. Nobody looks
  // at them later.
  void FillIndex(Duration run) {
    const Deadline end = Deadline::After(run);
    while (!end.Passed()) {
      std::vector<std::string> keys;
      for (uint64_t i = 0; i < kFillKeys; ++i)
        keys.push_back("fill-" + std::to_string(next_fill_++ % kFillKeysMost));
      const std::string value = std::to_string(random_());
      std::vector<PutItem> items;
      items.reserve(keys.size());
      for (const std::string& key : keys)
        items.push_back({.key = key, .value = std::string_view(value)});
      (void)parts_.back()->client->MultiPut(items,
                                            {.overwrite = true, .durability = Durability::kDram});
    }
  }

  Status WaitUntilServed() {
    EMS_RETURN_IF_ERROR(cluster_->WaitForServers(cluster_->server_count(), seconds(20)));
    EMS_RETURN_IF_ERROR(Connect());
    Status served;
    const auto answers = [&] {  // of each server
      served = OkStatus();
      for (const auto& part : parts_)
        for (uint64_t i = 0; i < options_.keys; ++i)
          served.Update(part->client->Exists("key-" + std::to_string(i)).status());
      return served.ok();
    };
    return Eventually(answers, seconds(20)) ? OkStatus() : Prefixed(served, "not served");
  }

  std::string LogEnds() {
    std::string ends;
    std::vector<const Daemon*> daemons = {&cluster_->controller()};
    for (int i = 0; i < cluster_->server_count(); ++i) daemons.push_back(&cluster_->server(i));
    for (const Daemon* daemon : daemons) {
      const std::string log = daemon->ReadLog();
      const size_t from = log.size() > kLogEndBytes ? log.size() - kLogEndBytes : 0;
      ends += fmt::format("---- log of {}\n{}\n", daemon->options().name, log.substr(from));
    }
    return ends;
  }

  bool IsBroken() {
    auto broken = broken_.Lock();
    return !broken->empty();
  }

  void Complain(const std::string& what) {
    auto broken = broken_.Lock();
    if (broken->size() < kBrokenMax)
      broken->push_back(fmt::format("cut {} ({}): {}", report_.cuts, note_, what));
  }

  const PowerOptions options_;
  std::mt19937_64 random_;
  uint64_t life_;  // of the server
  uint64_t next_fill_ = 0;
  std::unique_ptr<Cluster> cluster_;
  Guarded<std::vector<std::string>> broken_;
  std::string note_ = "first start";
  PowerReport report_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::unique_ptr<ControlLoad> control_;
};

Result<PowerReport> RunPowerCuts(const PowerOptions& options) { return PowerRun(options).Run(); }

}  // namespace ems::testing
