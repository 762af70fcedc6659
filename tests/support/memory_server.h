#pragma once
// An RpcServer over a MemoryStore, on any free port.
#include <memory>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/metrics.h"
#include "fabric/rpc/rpc_server.h"
#include "tests/support/eventually.h"
#include "tests/support/memory_session.h"

namespace ems::testing {

// Threading: one thread (holder); `store` is thread-safe.
struct MemoryServer {
  static fabric::RpcServerOptions DefaultOptions() {
    fabric::RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.io_threads = 2;
    return options;
  }
  explicit MemoryServer(const fabric::RpcServerOptions& options = DefaultOptions()) {
    metrics.connections = registry.AddGauge("connections", "open");
    metrics.accepted = registry.AddCounter("accepted", "accepted");
    metrics.refused = registry.AddCounter("refused", "refused");
    metrics.made_room = registry.AddCounter("made_room", "made room");
    metrics.bad_frames = registry.AddCounter("bad_frames", "bad");
    metrics.timeouts = registry.AddCounter("timeouts", "timeouts");
    metrics.slow_puts = registry.AddCounter("slow_puts", "slow puts");
    metrics.bytes_received = registry.AddCounter("bytes_received", "in");
    metrics.bytes_sent = registry.AddCounter("bytes_sent", "out");
    Result<std::unique_ptr<fabric::RpcServer>> started =
        fabric::RpcServer::Start(options, &store, metrics);
    status = started.status();
    if (started.ok()) server = std::move(*started);
  }
  const std::string& address() const { return server->address(); }

  MemoryStore store;
  MetricsRegistry registry;
  fabric::RpcMetrics metrics;
  Status status;
  std::unique_ptr<fabric::RpcServer> server;
};

// The default, at a Unix socket, too.
inline fabric::RpcServerOptions ServerOptionsAt(const std::string& unix_path) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  options.unix_path = unix_path;
  return options;
}

}  // namespace ems::testing
