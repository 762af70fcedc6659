#include "bench/harness/bench_cluster.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/harness/interrupt.h"
#include "common/bytes.h"
#include "common/logging.h"
#include "common/thread_pool.h"
#include "fabric/net/same_machine.h"
#include "fabric/net/socket.h"
#include "proto/controller.pb.h"

namespace ems::bench {
namespace {

constexpr std::string_view kIoThreadName = "ems-io-";  // of an RpcServer's threads
constexpr Duration kControlTimeout = std::chrono::seconds(5);
constexpr Duration kReadyTimeout = std::chrono::seconds(10);
constexpr Duration kReadyPoll = std::chrono::milliseconds(50);
// Values take more than their bytes: headers, chunks that are larger, the old value until it goes.
constexpr double kPoolShareMax = 0.75;
constexpr uint64_t kProbes = 256;  // keys that reach every server with near certainty

std::string UniqueName() {
  return fmt::format("bench-{}-{:x}", getpid(), Clock::System().Now().time_since_epoch().count());
}

// 0: nobody listens there.
pid_t ListenerPid(const std::string& unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (unix_path.empty() || unix_path.size() >= sizeof(address.sun_path)) return 0;
  std::memcpy(address.sun_path, unix_path.data(), unix_path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return 0;
  ucred peer{};
  socklen_t length = sizeof(peer);
  const bool known =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  close(fd);
  return known ? peer.pid : 0;
}

}  // namespace

TemporaryNamespace::TemporaryNamespace(Passkey, const std::string& controller)
    : controller_(controller, "ems-bench"), name_(UniqueName()) {}

Result<std::unique_ptr<TemporaryNamespace>> TemporaryNamespace::Create(
    const std::string& controller, uint64_t dram_quota_bytes, uint32_t replicas) {
  auto made = std::make_unique<TemporaryNamespace>(Passkey{}, controller);
  NamespaceInfo wanted;
  wanted.name = made->name_;
  wanted.dram_quota_bytes = dram_quota_bytes;
  wanted.immutable = replicas > 1;
  wanted.replicas = replicas;
  const auto created = made->controller_.CreateNamespace(wanted, Deadline::After(kControlTimeout));
  if (!created.ok()) return Prefixed(created.status(), "cannot create a namespace for the bench");
  made->created_ = true;
  return made;
}

TemporaryNamespace::~TemporaryNamespace() {
  if (!created_) return;
  const Status deleted = controller_.DeleteNamespace(name_, Deadline::After(kControlTimeout));
  if (!deleted.ok() && deleted.code() != StatusCode::kNotFound) {
    EMS_LOG(kWarn, "bench", "namespace {} is left behind, remove it with emsctl: {}", name_,
            ToString(deleted));
  }
}

ClientOptions ClientOptionsOf(const ClusterFlags& flags, const std::string& name_space) {
  ClientOptions options;
  options.controller = flags.controller;
  options.shm_token = flags.shm_token;
  options.name_space = name_space;
  return options;
}

void AddTransportOption(Command* command, std::string* transport) {
  command->AddOption("--transport", transport, "How to reach the servers",
                     {.check = OneOf{{"auto", "tcp", "unix"}}});
}

TransportChoice ParseTransport(const std::string& word) {
  if (word == "tcp") return TransportChoice::kTcp;
  return word == "unix" ? TransportChoice::kUnix : TransportChoice::kAuto;
}

std::vector<pid_t> LocalServerPids(const DhtView& view) {
  std::vector<pid_t> pids;
  const std::string here = fabric::HostId();
  for (const NodeInfo& node : view.nodes()) {
    if (!fabric::OnOneMachine(node.host_id, here)) continue;
    const pid_t pid = ListenerPid(node.unix_path);
    if (pid > 0) pids.push_back(pid);
  }
  return pids;
}

Result<std::vector<pid_t>> RequireLocalServers(const DhtView& view) {
  const std::string here = fabric::HostId();
  if (view.nodes().empty()) return Error(StatusCode::kFailedPrecondition, "there are no servers");
  for (const NodeInfo& node : view.nodes()) {
    if (!fabric::OnOneMachine(node.host_id, here)) {
      return Error(StatusCode::kFailedPrecondition,
                   "server {} ({}) is not on this host: run this on the servers' own, or ems-bench "
                   "store from here",
                   node.name, node.data_address);
    }
    if (node.unix_path.empty()) {
      return Error(StatusCode::kFailedPrecondition,
                   "server {} has no unix_path, over which local clients reach its memory: set one",
                   node.name);
    }
    if (ListenerPid(node.unix_path) <= 0) {
      return Error(StatusCode::kFailedPrecondition,
                   "server {} does not answer on its unix_path {}: is it gone, or of another user?",
                   node.name, node.unix_path);
    }
  }
  return LocalServerPids(view);
}

Status RequireCapacity(uint64_t working_set_bytes, const DhtView& view) {
  uint64_t capacity = 0;
  for (const NodeInfo& node : view.nodes()) capacity += node.capacity_bytes;
  const auto working_set = static_cast<double>(working_set_bytes);
  if (working_set <= kPoolShareMax * static_cast<double>(capacity)) return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "a working set of {} needs pools of {}, these have {}: give the servers more "
               "(dram.bytes) or take a smaller --working-set",
               FormatBytes(working_set_bytes),
               FormatBytes(static_cast<uint64_t>(working_set / kPoolShareMax)),
               FormatBytes(capacity));
}

uint32_t IoThreadsOf(pid_t server) {
  uint32_t threads = 0;
  std::error_code gone;
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", server), gone);
  for (const auto& task : tasks) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name.starts_with(kIoThreadName)) ++threads;
  }
  return threads;
}

Result<v1::ListNodesReply> ListNodes(ControllerClient* controller) {
  v1::ListNodesReply reply;
  EMS_RETURN_IF_ERROR(controller->ListNodes(&reply, Deadline::After(kControlTimeout)));
  return reply;
}

bool IsLive(const v1::NodeStatus& node) { return node.node().state() == v1::NODE_LIVE; }

uint64_t PoolBytes(const v1::ListNodesReply& nodes) {
  uint64_t total = 0;
  for (const v1::NodeStatus& node : nodes.nodes())
    if (IsLive(node)) total += node.usage().dram_total_bytes();
  return total;
}

Result<uint64_t> NamespaceBytes(Client* client, const std::string& server,
                                const std::string& name_space, const char* field) {
  EMS_ASSIGN_OR_RETURN(const std::string text, client->ServerStats(server, kControlTimeout));
  const auto stats = nlohmann::json::parse(text, nullptr, false);
  for (const auto& one : stats.value("namespaces", nlohmann::json::array()))
    if (one.value("name", "") == name_space) return one.value(field, uint64_t{0});
  return uint64_t{0};
}

Status WaitUntilReady(Client* client) {
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < kProbes; ++i) keys.push_back(fmt::format("ready-probe-{}", i));
  std::vector<PutItem> puts;
  std::vector<KeyItem> items;
  for (const std::string& key : keys) {
    puts.push_back({.key = key, .value = std::string_view(key)});
    items.push_back({.key = key});
  }
  const Deadline deadline = Deadline::After(kReadyTimeout);
  StopFlag never;
  while (true) {
    const std::vector<Status> stored = client->MultiPut(puts);
    const auto bad = std::find_if(stored.begin(), stored.end(),
                                  [](const Status& status) { return !status.ok(); });
    const std::vector<Status> removed = client->MultiRemove(items);
    if (bad == stored.end()) return OkStatus();
    if (deadline.Passed() || Interrupted())
      return Prefixed(*bad, "the servers do not take objects of the bench's namespace");
    never.WaitFor(kReadyPoll);
  }
}

}  // namespace ems::bench
