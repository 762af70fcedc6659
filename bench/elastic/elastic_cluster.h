#pragma once
// A controller and servers whose number changes while they are used: child processes of a bench.
//
// Invariant: all are gone when this is, servers first. Bound: kReadyTimeout for one to be ready.
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "bench/harness/bench_daemon.h"
#include "bench/harness/scratch_folder.h"
#include "common/status.h"

namespace ems::bench {

// What a server asked others for, of slots that they had before; since its start.
struct ForwardCounters {
  uint64_t hits = 0, misses = 0, refused = 0, failed = 0;  // keys
  uint64_t bytes = 0;
  friend bool operator==(const ForwardCounters&, const ForwardCounters&) = default;
};
// Of the text that a server answers /metrics with.
ForwardCounters ForwardCountersOf(std::string_view metrics);

// By process, as a counter begins anew with one.
using CountersByServer = std::map<pid_t, ForwardCounters>;
// What was counted between two moments; of a process that is gone by the second, nothing is known.
ForwardCounters CountedBetween(const CountersByServer& before, const CountersByServer& after);

struct ElasticClusterOptions {
  std::string programs;  // as FindDaemon takes it
  uint64_t dram_bytes = 0;
  uint32_t lease_ms = 1500;  // a killed server loses its slots after it
};

// Threading: one thread, as BenchDaemon.
class ElasticCluster final {
  struct Passkey {};  // only Start constructs

 public:
  ElasticCluster(Passkey, ElasticClusterOptions options) : options_(std::move(options)) {}
  // A controller alone. Errors: as BenchDaemon::StartReady
  static Result<std::unique_ptr<ElasticCluster>> Start(ElasticClusterOptions options);
  ElasticCluster(const ElasticCluster&) = delete;
  ElasticCluster& operator=(const ElasticCluster&) = delete;

  // Starts a server, or starts it again in its folder, and waits until it has its slots.
  Status StartServer(const std::string& name);
  // SIGTERM, and waits until it has ended.
  void StopServer(const std::string& name) { servers_.erase(name); }
  void KillServer(const std::string& name);
  bool Runs(const std::string& name) const { return servers_.contains(name); }

  // Of all that run. Errors: a server does not answer /metrics
  Result<CountersByServer> Counters() const;
  std::string controller_address() const { return controller_->Field("address"); }

 private:
  const ElasticClusterOptions options_;
  std::unique_ptr<ScratchFolder> folder_;
  std::unique_ptr<BenchDaemon> controller_;
  std::map<std::string, std::unique_ptr<BenchDaemon>> servers_;  // end before the controller
};

}  // namespace ems::bench
