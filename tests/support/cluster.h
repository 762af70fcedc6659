#pragma once
// One controller and some servers as real processes, in a temporary folder, on free loopback ports.
//
// Invariant: processes and folder are gone when the Cluster is. After a test failure the ends of
// the logs are printed. Bound: start, restart and every wait have a timeout.
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "mp_sdk/client.h"
#include "tests/support/daemon.h"
#include "tests/support/tcp_proxy.h"

namespace ems::testing {

// Threading: one thread (the one that made it), as Daemon.
class Cluster final {
 public:
  struct Options {
    int servers = 3;
    // e.g. "--set", "lease_ms=1000". Heartbeats are of 200 ms unless these say otherwise.
    // "damping_ms=0" is for servers that are started again: by default they wait for 5 s before
    // they are in the view again.
    std::vector<std::string> controller_flags;
    std::vector<std::string> server_flags;             // for each server
    std::vector<std::string> server_environment = {};  // likewise
    // Servers are reached over TCP, and reach the controller, through proxies. Their Unix sockets
    // and the calls of tests to the controller go past them.
    bool proxied = false;
    bool power_loss = false;      // CutPower works on each daemon's folder, folder()/NAME
    std::string lost_syncs = {};  // with it: see PowerLossEnvironment
  };

  // All daemons ready and all servers in the view.
  static Result<std::unique_ptr<Cluster>> Start(const Options& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  const std::string& folder() const { return folder_; }
  const std::string& controller_address() const { return controller_address_; }
  Daemon& controller() { return daemons_.front(); }
  Daemon& server(int index) { return daemons_.at(static_cast<size_t>(index) + 1); }  // from 0
  // With `proxied`. The way to a server for clients and other servers; its target is the server.
  TcpProxy& data_link(int index) { return *links_.at(static_cast<size_t>(index)).data; }
  // A server's way to the controller; its target is the controller.
  TcpProxy& control_link(int index) { return *links_.at(static_cast<size_t>(index)).control; }
  int server_count() const { return static_cast<int>(daemons_.size()) - 1; }
  static std::string ServerName(int index) { return "server-" + std::to_string(index); }

  // Starts the daemon again, in its folder; the controller on its old address, a server on a new
  // one.
  Status RestartController();
  // `extra`: flags for this start alone.
  Status RestartServer(int index, const std::vector<std::string>& extra = {});
  // The same without waiting until it is ready; not with `proxied`, whose proxy must hear the new
  // address.
  Status RespawnServer(int index, const std::vector<std::string>& extra = {});

  // Waits until the controller's view has exactly `servers` nodes and is not frozen.
  Status WaitForServers(int servers, Duration timeout);

  // A client of this cluster. `controller` (empty: the controller's own) may be the address of a
  // proxy.
  Result<std::unique_ptr<Client>> Connect(TransportChoice transport = TransportChoice::kAuto,
                                          Duration op_timeout = std::chrono::seconds(1),
                                          const std::string& controller = "") const;

 private:
  struct Links {
    std::unique_ptr<TcpProxy> data;
    std::unique_ptr<TcpProxy> control;
  };
  explicit Cluster(std::string folder) : folder_(std::move(folder)) {}
  Daemon::Options ControllerOptions(const Options& options) const;
  Daemon::Options ServerOptions(const Options& options, int index) const;
  Status WaitServerReady(int index);

  std::string folder_;
  std::string controller_address_;
  std::vector<Links> links_;                            // by server; empty unless `proxied`
  std::vector<Daemon> daemons_;                         // controller, then servers
  std::vector<std::vector<std::string>> server_flags_;  // as at the first start
};

}  // namespace ems::testing
