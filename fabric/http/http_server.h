#pragma once
// Serves HTTP/1.1 to many clients at once: answers whole or as streams, told at once when a client
// goes.
//
// Bounds, each an option: connections, bytes of a request, bytes that wait for a slow reader, and a
// time for each step. A client that closes its sending side counts as gone.
#include <memory>
#include <string>

#include "common/status.h"
#include "fabric/http/http_exchange.h"
#include "fabric/http/http_options.h"

namespace ems::fabric {

// Threading: Start and Stop from one thread; the rest runs on its "ems-http-N" threads.
class HttpServer final {
 public:
  // Binds and serves at once. Errors: kInvalidArgument  bad address    kUnavailable  cannot bind
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   HttpHandler handler,
                                                   const HttpMetrics& metrics = {});
  ~HttpServer();  // Stop() without patience
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // host:port as bound.
  const std::string& address() const;
  // Takes no more connections or requests, waits up to `patience` for answers in hand, then closes
  // all, which tells those whose answers have not ended, and joins.
  void Stop(Duration patience);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::fabric
