#include "bench/hot/hot_cluster.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "bench/harness/bench_cluster.h"
#include "cluster/controller_client.h"

namespace ems::bench {
namespace {

constexpr Duration kReadyTimeout = std::chrono::minutes(1);
constexpr Duration kCallTimeout = std::chrono::seconds(10);
constexpr const char* kNamespace = "hot";

}  // namespace

Result<std::unique_ptr<HotCluster>> HotCluster::Start(const HotClusterOptions& options) {
  auto made = std::make_unique<HotCluster>(Passkey{});
  EMS_ASSIGN_OR_RETURN(made->folder_, ScratchFolder::Make());
  const std::string& folder = made->folder_->path();
  EMS_ASSIGN_OR_RETURN(
      made->controller_,
      BenchDaemon::StartReady(options.programs, "mp-controller", folder,
                              {fmt::format("data_dir={}/controller", folder), "listen=127.0.0.1:0",
                               "http_listen=127.0.0.1:0", "damping_ms=0"},
                              kReadyTimeout));
  for (uint32_t i = 1; i <= options.servers; ++i)
    EMS_RETURN_IF_ERROR(made->StartServer(options, i));
  ControllerClient controller(made->controller_->Field("address"), "ems-bench hot");
  NamespaceInfo wanted;
  wanted.name = kNamespace;
  wanted.immutable = true;
  EMS_RETURN_IF_ERROR(controller.CreateNamespace(wanted, Deadline::After(kCallTimeout)).status());
  return made;
}

Status HotCluster::StartServer(const HotClusterOptions& options, uint32_t number) {
  // A folder of its own, as its log and ready file are named after the program.
  const std::string folder = fmt::format("{}/server-{}", folder_->path(), number);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Error(StatusCode::kInternal, "no folder {}: {}", folder, error.message());
  EMS_ASSIGN_OR_RETURN(auto nic, NicLimit::Start(options.nic_bytes_per_s));
  std::vector<std::string> settings = {fmt::format("name=server-{}", number),
                                       "controller=" + controller_->Field("address"),
                                       "data_dir=" + folder + "/data",
                                       "listen=127.0.0.1:0",
                                       "http_listen=127.0.0.1:0",
                                       "advertise=" + nic->address(),
                                       fmt::format("dram.bytes={}", options.dram_bytes)};
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  EMS_ASSIGN_OR_RETURN(auto server, BenchDaemon::StartReady(options.programs, "mp-server", folder,
                                                            settings, kReadyTimeout));
  nic->SetTarget(server->Field("address"));
  nics_.push_back(std::move(nic));
  servers_.push_back(std::move(server));
  return OkStatus();
}

Result<std::unique_ptr<Client>> HotCluster::Connect() const {
  ClientOptions options;
  options.controller = controller_->Field("address");
  options.name_space = kNamespace;
  options.transport = TransportChoice::kTcp;
  EMS_ASSIGN_OR_RETURN(auto client, Client::Connect(options));
  EMS_RETURN_IF_ERROR(WaitUntilReady(client.get()));
  return client;
}

std::vector<uint64_t> HotCluster::SentBytes() const {
  std::vector<uint64_t> sent;
  sent.reserve(nics_.size());
  for (const auto& nic : nics_) sent.push_back(nic->sent_bytes());
  return sent;
}

}  // namespace ems::bench
