#pragma once
// Serves the data plane's frames on TCP and a Unix socket.
//
// Each connection lives on one "ems-io" thread and serves its requests in the order they come.
// Bounds: connections_max connections, each with 1 KiB of read-ahead and one request in hand; a
// request must bring its header and key within header_timeout and pass its body and answer within
// transfer_timeout + 1 s for each 10 MB.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/status.h"
#include "fabric/rpc_session.h"

namespace ems::fabric {

struct RpcMetrics {
  Gauge connections;
  Counter accepted;
  Counter refused;         // over connections_max, or out of descriptors
  Counter bad_frames;      // not EMS, damaged, or against the rules
  Counter timeouts;        // slow headers, slow readers, slow writers
  Counter bytes_received;  // bodies
  Counter bytes_sent;
};

struct RpcServerOptions {
  std::string listen;         // host:port; port 0: any; empty: no TCP
  std::string unix_path;      // empty: none
  uint32_t unix_mode = 0660;  // of its file: who may connect
  uint32_t io_threads = 0;    // 0: one a core, 8 at most
  uint32_t connections_max = 1024;
  Duration header_timeout = std::chrono::seconds(5);
  Duration transfer_timeout = std::chrono::seconds(5);
  Duration idle_timeout = std::chrono::minutes(10);  // 0: never
  uint64_t value_bytes_max = 64 * kMiB;
};

// Threading: Start and Stop from one thread; the rest runs on its own threads.
class RpcServer final {
 public:
  // Binds and serves at once. `factory` and `metrics` must outlive the server.
  // Errors: kInvalidArgument  bad address    kUnavailable  cannot bind, naming the address
  static Result<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options,
                                                  SessionFactory* factory,
                                                  const RpcMetrics& metrics);
  ~RpcServer();  // Stop() without patience
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // host:port as bound; empty without TCP.
  const std::string& address() const;
  const std::string& unix_path() const;
  // Stops accepting, waits up to `patience` for requests in hand, then closes everything and joins.
  void Stop(Duration patience);

 private:
  struct Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::fabric
