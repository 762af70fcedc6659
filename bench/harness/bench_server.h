#pragma once
// A server of EMS with an SSD tier or without one, and a controller of its own, as child processes.
//
// Invariant: both processes are gone when this is; their files stay in the folder.
// Bound: kReadyTimeout for a daemon to be ready.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/bench_daemon.h"
#include "common/status.h"
#include "mp_sdk/client.h"

namespace ems::bench {

struct BenchServerOptions {
  std::string folder;    // there already; of this server alone
  std::string programs;  // as FindDaemon takes it
  uint64_t dram_bytes = 0;
  uint64_t ssd_bytes = 0;                  // 0: no tier
  std::vector<std::string> settings = {};  // further ones, KEY=VALUE
};

// Threading: one thread, as BenchDaemon.
class BenchServer final {
  struct Passkey {};  // only Start constructs

 public:
  // Errors: kNotFound  a program is not there    kUnavailable, kDeadlineExceeded  it is not ready
  static Result<std::unique_ptr<BenchServer>> Start(BenchServerOptions options);
  BenchServer(Passkey, BenchServerOptions options) : options_(std::move(options)) {}

  // A client of its cluster, once the namespace takes values. Errors: as Client::Connect
  Result<std::unique_ptr<Client>> Connect(ClientOptions options = {}) const;
  const std::string& controller_address() const { return controller_address_; }  // host:port
  pid_t pid() const { return server_->pid(); }
  // Ends the server without giving it time for anything (SIGKILL); the controller goes on.
  void Kill();
  // Starts it again in its folder. Seconds from the start of the process until it is ready: its
  // tier is open and it has its slots. Errors: as Start's
  Result<double> StartAgain();

 private:
  Status StartServer();

  const BenchServerOptions options_;
  std::string controller_address_;
  std::unique_ptr<BenchDaemon> controller_;
  std::unique_ptr<BenchDaemon> server_;  // ends before its controller
};

}  // namespace ems::bench
