#pragma once
// Where a bench gets a serving loop from: something that starts one, with EMS behind it or
// without, and says where its HTTP API listens.
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_daemon.h"
#include "common/status.h"

namespace ems::bench {

// Threading: one thread.
class ServingLoop {
 public:
  virtual ~ServingLoop() = default;
  // Starts it and waits until requests would be served. Returns host:port. Once, or after Stop.
  // Errors: why it does not serve
  virtual Result<std::string> Start(bool with_ems) = 0;
  // Ends it; nothing when it does not run.
  virtual void Stop() = 0;
};

struct PdcLoopOptions {
  std::string model = "base";  // a preset
  // The pool of a loop with EMS; empty: a controller and a server of its own.
  std::string controller = {};
  std::string pool_bytes = "1GiB";         // DRAM of a server of its own
  std::string programs = {};               // folder of the daemons, as FindDaemon takes it
  std::vector<std::string> settings = {};  // KEY=VALUE for ems-pdc, over those that the loop has
};

// One ems-pdc with a prefill and a decode worker in it, as a child process.
// Invariant: its processes and files are gone when it is. Bound: 60 s for a daemon to be ready,
// 3 minutes for ems-pdc, which makes its model first.
// Threading: one thread.
class PdcLoop final : public ServingLoop {
 public:
  explicit PdcLoop(PdcLoopOptions options) : options_(std::move(options)) {}
  ~PdcLoop() override { Stop(); }
  PdcLoop(const PdcLoop&) = delete;
  PdcLoop& operator=(const PdcLoop&) = delete;

  // Errors: kNotFound  a program is not there    kUnavailable, kDeadlineExceeded  it is not ready,
  // and what it printed last    kFailedPrecondition  it runs already
  Result<std::string> Start(bool with_ems) override;
  void Stop() override;

 private:
  // Starts it and waits; it is daemons_.back() then.
  Status Launch(const std::string& program, std::vector<std::string> settings, Duration timeout);
  // A controller and a server; the controller's address.
  Result<std::string> LaunchPool();

  const PdcLoopOptions options_;
  std::string folder_;                                 // empty: does not run
  std::vector<std::unique_ptr<BenchDaemon>> daemons_;  // in the order in which they were started
};

}  // namespace ems::bench
