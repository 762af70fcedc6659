#pragma once
// A controller and servers behind network cards of a stated speed: child processes of a bench, each
// server reached through a NicLimit alone, by clients as by the other servers.
//
// Invariant: all are gone when this is. Bound: a minute for one to be ready.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/bench_daemon.h"
#include "bench/harness/scratch_folder.h"
#include "bench/hot/nic_limit.h"
#include "common/status.h"
#include "mp_sdk/client.h"

namespace ems::bench {

struct HotClusterOptions {
  std::string programs;  // as FindDaemon takes it
  uint32_t servers = 4;
  double nic_bytes_per_s = 100e6;
  uint64_t dram_bytes = 0;                 // of each
  std::vector<std::string> settings = {};  // further ones of servers, KEY=VALUE
};

// Threading: one thread, as BenchDaemon; Connect and sent_bytes thread-safe.
class HotCluster final {
  struct Passkey {};  // only Start constructs

 public:
  explicit HotCluster(Passkey) {}
  // With an immutable namespace. Errors: as BenchDaemon::StartReady, NicLimit::Start
  static Result<std::unique_ptr<HotCluster>> Start(const HotClusterOptions& options);
  HotCluster(const HotCluster&) = delete;
  HotCluster& operator=(const HotCluster&) = delete;

  // A client of the namespace, over TCP. Errors: as Client::Connect
  Result<std::unique_ptr<Client>> Connect() const;
  // What each server has sent.
  std::vector<uint64_t> SentBytes() const;

 private:
  Status StartServer(const HotClusterOptions& options, uint32_t number);

  std::unique_ptr<ScratchFolder> folder_;
  std::unique_ptr<BenchDaemon> controller_;
  std::vector<std::unique_ptr<NicLimit>> nics_;
  std::vector<std::unique_ptr<BenchDaemon>> servers_;  // end first
};

}  // namespace ems::bench
