#include "tests/support/etcd_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>
#include <vector>

#include "fabric/net/socket.h"
#include "tests/support/eventually.h"

namespace ems::testing {
namespace {

constexpr int kTries = 5;  // another process may take a port first

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

uint16_t FreePort() {
  const fabric::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = Loopback(0);
  socklen_t size = sizeof(at);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
    return 0;
  return ntohs(at.sin_port);
}

bool Accepts(uint16_t port) {
  const fabric::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in at = Loopback(port);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
}

}  // namespace

std::string EtcdProcess::Find() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = folder + "/etcd";
    if (program.starts_with('/') && ::access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

Result<EtcdProcess> EtcdProcess::Start(const std::string& folder) {
  for (int i = 0; i < kTries; ++i) {
    const uint16_t port = FreePort(), peer_port = FreePort();
    const std::string client = "http://127.0.0.1:" + std::to_string(port);
    const std::string peer = "http://127.0.0.1:" + std::to_string(peer_port);
    EtcdProcess etcd;
    etcd.endpoint_ = "127.0.0.1:" + std::to_string(port);
    EMS_ASSIGN_OR_RETURN(
        Daemon process,
        Daemon::Start(
            {.program = Find(),
             .folder = folder,
             .name = "etcd",
             .flags = {"--name=test", "--data-dir=" + folder + "/etcd-data",
                       "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
                       "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
                       "--initial-cluster=test=" + peer, "--log-level=warn", "--logger=zap"},
             .fd_limit = {},
             .environment = {}}));
    if (Eventually([&] { return !process.running() || Accepts(port); }) && process.running()) {
      etcd.process_ = std::move(process);
      return etcd;
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder + "/etcd-data", ignored);
  }
  return Error(StatusCode::kUnavailable, "etcd does not start in {}: see etcd.log there", folder);
}

}  // namespace ems::testing
