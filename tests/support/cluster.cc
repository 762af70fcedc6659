#include "tests/support/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>

#include "cluster/controller_client.h"
#include "common/check.h"
#include "tests/support/eventually.h"
#include "tests/support/power_cut.h"

namespace ems::testing {
namespace {

constexpr Duration kReadyTimeout = std::chrono::seconds(30);
constexpr size_t kLogTailBytes = 4000;

std::string MakeFolder() {
  char path[] = "/tmp/ems-test-XXXXXX";  // short: socket paths have 107 characters
  EMS_CHECK(mkdtemp(path) != nullptr, "mkdtemp failed");
  return path;
}

void PrintLogTail(const Daemon& daemon) {
  const std::string log = daemon.ReadLog();
  const size_t from = log.size() > kLogTailBytes ? log.size() - kLogTailBytes : 0;
  std::fprintf(stderr, "---- log of %s\n%s\n", daemon.options().name.c_str(), log.c_str() + from);
}

}  // namespace

Daemon::Options Cluster::ControllerOptions(const Options& options) const {
  Daemon::Options daemon{.program = "mp-controller",
                         .folder = folder_,
                         .name = "controller",
                         .flags = {},
                         .fd_limit = {},
                         .environment = {}};
  daemon.flags = {"--set", "data_dir=" + folder_ + "/controller", "--set", "listen=127.0.0.1:0",
                  "--set", "http_listen=127.0.0.1:0",
                  // A server hears with a heartbeat that it is in the view.
                  "--set", "heartbeat_ms=200"};
  daemon.flags.insert(daemon.flags.end(), options.controller_flags.begin(),
                      options.controller_flags.end());
  if (options.power_loss)
    daemon.environment = PowerLossEnvironment(folder_ + "/controller", options.lost_syncs);
  return daemon;
}

Daemon::Options Cluster::ServerOptions(const Options& options, int index) const {
  const std::string name = ServerName(index);
  Daemon::Options daemon{.program = "mp-server",
                         .folder = folder_,
                         .name = name,
                         .flags = {},
                         .fd_limit = {},
                         .environment = options.server_environment};
  daemon.flags = {"--set", "name=" + name,
                  "--set", "controller=" + controller_address_,
                  "--set", "data_dir=" + folder_ + "/" + name,
                  "--set", "unix_path=" + folder_ + "/" + name + ".sock",
                  "--set", "listen=127.0.0.1:0",
                  "--set", "http_listen=127.0.0.1:0",
                  "--set", "dram.bytes=256MiB"};
  if (options.proxied) {
    const Links& links = links_.at(static_cast<size_t>(index));
    daemon.flags.insert(daemon.flags.end(), {"--set", "controller=" + links.control->address(),
                                             "--set", "advertise=" + links.data->address()});
  }
  daemon.flags.insert(daemon.flags.end(), options.server_flags.begin(), options.server_flags.end());
  if (options.power_loss) {
    for (std::string& one : PowerLossEnvironment(folder_ + "/" + name, options.lost_syncs))
      daemon.environment.push_back(std::move(one));
  }
  return daemon;
}

Result<std::unique_ptr<Cluster>> Cluster::Start(const Options& options) {
  std::unique_ptr<Cluster> cluster(new Cluster(MakeFolder()));
  cluster->daemons_.reserve(static_cast<size_t>(options.servers) + 1);
  EMS_ASSIGN_OR_RETURN(Daemon controller, Daemon::Start(cluster->ControllerOptions(options)));
  cluster->daemons_.push_back(std::move(controller));
  EMS_RETURN_IF_ERROR(cluster->controller().WaitReady(kReadyTimeout));
  cluster->controller_address_ = cluster->controller().ready().address;
  for (int i = 0; i < options.servers; ++i) {
    if (options.proxied) {
      cluster->links_.push_back(
          {std::make_unique<TcpProxy>(), std::make_unique<TcpProxy>(cluster->controller_address_)});
    }
    EMS_ASSIGN_OR_RETURN(Daemon server, Daemon::Start(cluster->ServerOptions(options, i)));
    cluster->server_flags_.push_back(server.options().flags);
    cluster->daemons_.push_back(std::move(server));
  }
  for (int i = 0; i < options.servers; ++i) {
    EMS_RETURN_IF_ERROR(cluster->WaitServerReady(i));
  }
  EMS_RETURN_IF_ERROR(cluster->WaitForServers(options.servers, kReadyTimeout));
  return cluster;
}

Cluster::~Cluster() {
  for (Daemon& daemon : daemons_) {
    if (::testing::Test::HasFailure()) PrintLogTail(daemon);
    daemon.Kill();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Status Cluster::RestartController() {
  Daemon::Options options = controller().options();
  controller().Kill();
  options.flags.insert(options.flags.end(), {"--set", "listen=" + controller_address_});
  EMS_ASSIGN_OR_RETURN(controller(), Daemon::Start(std::move(options)));
  return controller().WaitReady(kReadyTimeout);
}

Status Cluster::RespawnServer(int index, const std::vector<std::string>& extra) {
  Daemon::Options options = server(index).options();
  options.flags = server_flags_.at(static_cast<size_t>(index));
  options.flags.insert(options.flags.end(), extra.begin(), extra.end());
  server(index).Kill();
  EMS_ASSIGN_OR_RETURN(server(index), Daemon::Start(std::move(options)));
  return OkStatus();
}

Status Cluster::RestartServer(int index, const std::vector<std::string>& extra) {
  EMS_RETURN_IF_ERROR(RespawnServer(index, extra));
  return WaitServerReady(index);
}

Status Cluster::WaitServerReady(int index) {
  EMS_RETURN_IF_ERROR(server(index).WaitReady(kReadyTimeout));
  if (!links_.empty()) data_link(index).SetTarget(server(index).ready().address);
  return OkStatus();
}

Status Cluster::WaitForServers(int servers, Duration timeout) {
  ControllerClient controller(controller_address_, "test");
  size_t seen = 0;
  const auto all_are_there = [&] {
    ViewCache cache;
    const Status status = controller.Refresh(&cache, Deadline::After(std::chrono::seconds(1)));
    const ViewCache::View view = cache.view();
    if (!status.ok() || view == nullptr) return false;
    seen = view->nodes().size();
    return seen == static_cast<size_t>(servers) && !view->frozen();
  };
  if (Eventually(all_are_there, timeout)) return OkStatus();
  return Error(StatusCode::kDeadlineExceeded, "the view has {} servers, {} were expected", seen,
               servers);
}

Result<std::unique_ptr<Client>> Cluster::Connect(TransportChoice transport, Duration op_timeout,
                                                 const std::string& controller) const {
  ClientOptions options;
  options.controller = controller.empty() ? controller_address_ : controller;
  options.transport = transport;
  options.op_timeout = op_timeout;
  return Client::Connect(options);
}

}  // namespace ems::testing
