#include "tests/fault/chaos/rig.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/check.h"
#include "tests/support/eventually.h"
#include "tests/support/paths.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kDiskBytes = 128 * kMiB;
constexpr double kResetChance = 0.1, kDamageChance = 0.05;
constexpr size_t kLogEndBytes = 6000;

// Nothing may be preloaded before AddressSanitizer's own library.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCanPreload = false;
#else
constexpr bool kCanPreload = true;
#endif

LinkFaults FaultsOf(const Fault& fault) {
  LinkFaults faults;
  switch (fault.kind) {
    case FaultKind::kVanish:
      faults.carry = Carry::kVanish;
      break;
    case FaultKind::kSwallow:
      faults.carry = Carry::kSwallow;
      break;
    case FaultKind::kStall:
      faults.carry = Carry::kStall;
      break;
    case FaultKind::kDelay:
      faults.delay = milliseconds(fault.strength);
      break;
    case FaultKind::kResets:
      faults.noise = {.reset = kResetChance, .seed = fault.strength};
      break;
    default:
      faults.noise = {.flip = kDamageChance,
                      .drop = kDamageChance,
                      .duplicate = kDamageChance,
                      .reorder = kDamageChance,
                      .seed = fault.strength};
  }
  return faults;
}

}  // namespace

Result<std::unique_ptr<ChaosRig>> ChaosRig::Start(
    const ChaosMeans& wanted, Duration lease, std::function<void(const std::string&)> complain) {
  std::unique_ptr<ChaosRig> rig(new ChaosRig(wanted, std::move(complain)));
  EMS_RETURN_IF_ERROR(rig->Make(lease));
  return rig;
}

Status ChaosRig::Make(Duration lease) {
  means_.hung_disk = means_.hung_disk && kCanPreload;
  for (int i = 0; i < means_.servers; ++i) {
    disks_.push_back(std::make_unique<SmallDisk>(kDiskBytes));
    means_.full_disk = means_.full_disk && disks_.back()->mounted();
  }
  Cluster::Options options;
  options.servers = means_.servers;
  options.controller_flags = {"--set", fmt::format("lease_ms={}", lease / milliseconds(1)),
                              "--set", "damping_ms=0",
                              "--set", "settle_ms=10"};
  options.server_flags = {"--set", "dram.bytes=64MiB", "--set", "dram.huge_pages=off"};
  if (means_.hung_disk)
    options.server_environment = {"LD_PRELOAD=" + BinDir() + "/../tests/bin/libhang_sync.so"};
  options.proxied = true;
  EMS_ASSIGN_OR_RETURN(cluster_, Cluster::Start(options));
  for (int i = 0; i < means_.servers; ++i)
    EMS_RETURN_IF_ERROR(cluster_->RestartServer(i, FlagsOf(i)));
  for (int i = 0; i < means_.clients; ++i)
    client_links_.push_back(std::make_unique<TcpProxy>(cluster_->controller_address()));
  starting_.assign(static_cast<size_t>(means_.servers), false);
  return OkStatus();
}

// A tier so small that regions are reclaimed all the time.
std::vector<std::string> ChaosRig::FlagsOf(int server) const {
  std::vector<std::string> flags = {"--set", "ssd.capacity_bytes=48MiB",
                                    "--set", "ssd.region_bytes=1MiB",
                                    "--set", "ssd.dirty_bytes_max=16MiB"};
  if (means_.full_disk)
    flags.insert(flags.end(),
                 {"--set", "ssd.path=" + disks_.at(static_cast<size_t>(server))->path() + "/ssd"});
  return flags;
}

Result<std::unique_ptr<Client>> ChaosRig::Connect(int index, TransportChoice transport) {
  return cluster_->Connect(transport, std::chrono::seconds(1),
                           client_links_.at(static_cast<size_t>(index))->address());
}

std::vector<TcpProxy*> ChaosRig::LinksOf(const Fault& fault) {
  if (fault.place == Place::kDataLink) return {&cluster_->data_link(fault.index)};
  if (fault.place == Place::kClientLink)
    return {client_links_.at(static_cast<size_t>(fault.index)).get()};
  std::vector<TcpProxy*> links = {&cluster_->control_link(fault.index)};
  for (size_t i = 0; fault.kind == FaultKind::kPartition && i < client_links_.size(); ++i)
    if ((fault.strength >> i & 1) != 0) links.push_back(client_links_[i].get());
  return links;
}

Daemon& ChaosRig::DaemonOf(const Fault& fault) {
  return fault.place == Place::kServer ? cluster_->server(fault.index) : cluster_->controller();
}

void ChaosRig::Begin(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kStop:
      return DaemonOf(fault).Signal(SIGSTOP);
    case FaultKind::kKill:
      return DaemonOf(fault).Kill();
    case FaultKind::kHungDisk:
      return HangDisk(fault, true);
    case FaultKind::kFullDisk:
      return disks_.at(static_cast<size_t>(fault.index))->Fill();
    default:
      BeginOnLinks(fault);
  }
}

void ChaosRig::BeginOnLinks(const Fault& fault) {
  for (TcpProxy* link : LinksOf(fault)) {
    if (fault.kind == FaultKind::kCut || fault.kind == FaultKind::kPartition) {
      link->Cut();
      continue;
    }
    if (fault.ways != 1) link->Set(Way::kToTarget, FaultsOf(fault));
    if (fault.ways != 0) link->Set(Way::kToClient, FaultsOf(fault));
  }
}

void ChaosRig::End(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kStop:
      return DaemonOf(fault).Signal(SIGCONT);
    case FaultKind::kKill: {
      if (fault.place == Place::kController) HangDisk(fault, false);  // its start is waited for
      const Status started = Revive(fault.place, fault.index);
      if (!started.ok()) complain_(ToString(started));
      return;
    }
    case FaultKind::kHungDisk:
      return HangDisk(fault, false);
    case FaultKind::kFullDisk:
      return disks_.at(static_cast<size_t>(fault.index))->Free();
    default:
      for (TcpProxy* link : LinksOf(fault)) link->Mend();
  }
}

Status ChaosRig::Revive(Place place, int index) {
  if (place == Place::kController)
    return cluster_->controller().pid() == 0 ? cluster_->RestartController() : OkStatus();
  if (cluster_->server(index).pid() != 0) return OkStatus();
  // A tier that finds a full disk at its start is offline until the next one.
  disks_.at(static_cast<size_t>(index))->Free();
  EMS_RETURN_IF_ERROR(cluster_->RespawnServer(index, FlagsOf(index)));
  starting_.at(static_cast<size_t>(index)) = true;
  return OkStatus();
}

// In each folder of the daemon.
void ChaosRig::HangDisk(const Fault& fault, bool hangs) {
  const std::string folder = cluster_->folder() + "/" + DaemonOf(fault).options().name;
  std::vector<std::string> folders = {folder, folder + "/store"};
  if (fault.place == Place::kServer) {
    const std::string ssd = means_.full_disk
                                ? disks_.at(static_cast<size_t>(fault.index))->path() + "/ssd"
                                : folder + "/ssd";
    folders = {folder, ssd + "/index", ssd + "/regions"};
  }
  for (const std::string& one : folders) {
    std::error_code ignored;
    if (hangs) {
      std::ofstream{one + "/hang"};
    } else {
      std::filesystem::remove(one + "/hang", ignored);
    }
  }
}

void ChaosRig::Tend() {
  for (int i = 0; i < means_.servers; ++i) {
    Daemon& server = cluster_->server(i);
    if (server.pid() == 0) continue;  // killed
    if (!server.running()) {
      complain_(fmt::format("{} has ended by itself", server.options().name));
      server.Kill();
    } else if (starting_.at(static_cast<size_t>(i)) && server.WaitReady(Duration::zero()).ok()) {
      cluster_->data_link(i).SetTarget(server.ready().address);
      starting_.at(static_cast<size_t>(i)) = false;
    }
  }
  Daemon& controller = cluster_->controller();
  if (controller.pid() == 0 || controller.running()) return;
  complain_("the controller has ended by itself");
  controller.Kill();
}

Status ChaosRig::Heal(Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  for (const auto& link : client_links_) link->Mend();
  for (int i = -1; i < means_.servers; ++i) {
    const Place place = i < 0 ? Place::kController : Place::kServer;
    const Fault any{FaultKind::kStop, place, i, 0, 0, {}, {}};
    DaemonOf(any).Signal(SIGCONT);
    HangDisk(any, false);
    if (i >= 0) {
      cluster_->data_link(i).Mend();
      cluster_->control_link(i).Mend();
      disks_.at(static_cast<size_t>(i))->Free();
    }
    EMS_RETURN_IF_ERROR(Revive(place, i));
  }
  const auto all_ready = [&] {
    Tend();
    return std::find(starting_.begin(), starting_.end(), true) == starting_.end();
  };
  if (!Eventually(all_ready, deadline.Remaining()))
    return Error(StatusCode::kDeadlineExceeded, "a server is not ready");
  return cluster_->WaitForServers(means_.servers, deadline.Remaining());
}

std::string ChaosRig::LogEnds() const {
  std::string ends;
  for (int i = -1; i < means_.servers; ++i) {
    const Daemon& daemon = i < 0 ? cluster_->controller() : cluster_->server(i);
    const std::string log = daemon.ReadLog();
    const size_t from = log.size() > kLogEndBytes ? log.size() - kLogEndBytes : 0;
    ends += fmt::format("---- log of {}\n{}\n", daemon.options().name, log.substr(from));
  }
  return ends;
}

}  // namespace ems::testing
