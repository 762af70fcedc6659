#include "bench/harness/bench_server.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <vector>

#include "bench/harness/bench_cluster.h"
#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

constexpr size_t kSocketFolderMax = 90;  // socket paths have 107 characters; else TCP will do
constexpr Duration kReadyTimeout = std::chrono::minutes(2);

}  // namespace

Result<std::unique_ptr<BenchServer>> BenchServer::Start(BenchServerOptions options) {
  auto made = std::make_unique<BenchServer>(Passkey{}, std::move(options));
  const std::string& folder = made->options_.folder;
  EMS_ASSIGN_OR_RETURN(made->controller_,
                       BenchDaemon::StartReady(made->options_.programs, "mp-controller", folder,
                                               {fmt::format("data_dir={}/controller", folder),
                                                "listen=127.0.0.1:0", "http_listen=127.0.0.1:0",
                                                // A server that is back is not kept waiting.
                                                "damping_ms=0"},
                                               kReadyTimeout));
  made->controller_address_ = made->controller_->Field("address");
  EMS_RETURN_IF_ERROR(made->StartServer());
  return made;
}

Status BenchServer::StartServer() {
  std::vector<std::string> settings = {"name=server-1",
                                       "controller=" + controller_address_,
                                       fmt::format("data_dir={}/server", options_.folder),
                                       "listen=127.0.0.1:0",
                                       "http_listen=127.0.0.1:0",
                                       fmt::format("dram.bytes={}", options_.dram_bytes)};
  if (options_.folder.size() <= kSocketFolderMax)
    settings.push_back(fmt::format("unix_path={}/server.sock", options_.folder));
  if (options_.ssd_bytes > 0)
    settings.push_back(fmt::format("ssd.capacity_bytes={}", options_.ssd_bytes));
  settings.insert(settings.end(), options_.settings.begin(), options_.settings.end());
  EMS_ASSIGN_OR_RETURN(server_, BenchDaemon::StartReady(options_.programs, "mp-server",
                                                        options_.folder, settings, kReadyTimeout));
  return OkStatus();
}

Result<std::unique_ptr<Client>> BenchServer::Connect(ClientOptions options) const {
  options.controller = controller_address_;
  EMS_ASSIGN_OR_RETURN(auto client, Client::Connect(options));
  EMS_RETURN_IF_ERROR(WaitUntilReady(client.get()));
  return client;
}

void BenchServer::Kill() {
  server_->Kill();
  server_.reset();
}

Result<double> BenchServer::StartAgain() {
  const TimePoint begin = Clock::System().Now();
  EMS_RETURN_IF_ERROR(StartServer());
  return SecondsSince(begin);
}

}  // namespace ems::bench
