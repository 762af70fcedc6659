#pragma once
// A serving loop of a bench's own, with EMS behind it or without.
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/bench_daemon.h"
#include "bench/harness/scratch_folder.h"
#include "common/status.h"

namespace ems::bench {

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
class PdcLoop final {
  struct Passkey {};  // only Start constructs

 public:
  // Starts it and waits until requests would be served.
  // Errors: kNotFound  a program is not there    kUnavailable, kDeadlineExceeded  it is not ready,
  // and what it printed last
  static Result<std::unique_ptr<PdcLoop>> Start(const PdcLoopOptions& options, bool with_ems);
  PdcLoop(Passkey, PdcLoopOptions options) : options_(std::move(options)) {}
  ~PdcLoop();
  PdcLoop(const PdcLoop&) = delete;
  PdcLoop& operator=(const PdcLoop&) = delete;
  const std::string& address() const { return address_; }  // host:port

 private:
  // Starts it and waits; it is daemons_.back() then.
  Status Launch(const std::string& program, const std::vector<std::string>& settings,
                Duration timeout);
  // A controller and a server; the controller's address.
  Result<std::string> LaunchPool();

  const PdcLoopOptions options_;
  std::string address_;
  std::unique_ptr<ScratchFolder> folder_;              // gone after the daemons
  std::vector<std::unique_ptr<BenchDaemon>> daemons_;  // in the order in which they were started
};

}  // namespace ems::bench
