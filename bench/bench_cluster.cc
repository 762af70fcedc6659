#include "bench/bench_cluster.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "common/logging.h"
#include "fabric/socket.h"

namespace ems::bench {
namespace {

constexpr Duration kControlTimeout = std::chrono::seconds(5);

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
    const std::string& controller) {
  auto made = std::make_unique<TemporaryNamespace>(Passkey{}, controller);
  NamespaceInfo wanted;
  wanted.name = made->name_;
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

std::vector<pid_t> LocalServerPids(const DhtView& view) {
  std::vector<pid_t> pids;
  const std::string here = fabric::HostId();
  for (const NodeInfo& node : view.nodes()) {
    if (node.host_id != here) continue;
    const pid_t pid = ListenerPid(node.unix_path);
    if (pid > 0) pids.push_back(pid);
  }
  return pids;
}

Result<std::vector<pid_t>> RequireLocalServers(const DhtView& view) {
  const std::string here = fabric::HostId();
  if (view.nodes().empty()) return Error(StatusCode::kFailedPrecondition, "there are no servers");
  for (const NodeInfo& node : view.nodes()) {
    if (node.host_id != here) {
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

}  // namespace ems::bench
