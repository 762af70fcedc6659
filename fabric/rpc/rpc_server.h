#pragma once
// Serves the data plane's frames on TCP and a Unix socket.
//
// Each connection lives on one "ems-io" thread and serves its requests in the order they come.
// Bounds: connections_max connections, three quarters of them of one peer (idle ones give way to
// others, io_threads.h), each with 5 KiB of read-ahead and one request in hand; a request must
// bring its header and key within header_timeout, and of its body, as of its answer, 10 MB must
// have passed for each second beyond transfer_timeout. What is slower loses its connection, and
// with it the room of a value that is being received and the pins of an answer.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/rpc/rpc_options.h"
#include "fabric/rpc/rpc_session.h"

namespace ems::fabric {

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
