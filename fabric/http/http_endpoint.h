#pragma once
// A daemon's small HTTP port: /metrics, /healthz and /readyz, and what a daemon adds to be told.
// Not for payloads.
//
// Bound: 64 connections, closed after one answer each; 8 KiB of head and of body; 2 s for a head, a
// body, and a reader that takes nothing; 4 MiB of a stream that its reader has not taken.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "common/status.h"
#include "fabric/http/http_server.h"

namespace ems::fabric {

// Threading: thread-safe. The callbacks run on the server's two threads, which they must not block.
class HttpEndpoint final {
 public:
  // One more page, which takes a text by POST: 200 for OK, 400 with the reason otherwise.
  struct PostPage {
    std::string path;
    std::function<Status(const std::string& body)> take;
  };
  // One more page, by GET and HEAD, whose handler answers when it likes, whole or as a stream.
  struct GetPage {
    std::string path;
    HttpHandler show;
  };

  // Serves on `listen` (host:port, port 0: any) at once. `metrics` must outlive the endpoint.
  // `healthy` and `ready` answer 200 for OK, 503 with the text otherwise; `before_render` (may be
  // empty) refreshes gauges before each /metrics. Errors: kInvalidArgument  bad address
  // kUnavailable  cannot bind
  static Result<std::unique_ptr<HttpEndpoint>> Start(
      const std::string& listen, const MetricsRegistry* metrics, std::function<Status()> healthy,
      std::function<Status()> ready, std::function<void()> before_render = {},
      const std::vector<PostPage>& posts = {}, const std::vector<GetPage>& gets = {});
  // host:port as bound.
  const std::string& address() const { return server_->address(); }

 private:
  explicit HttpEndpoint(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
  std::unique_ptr<HttpServer> server_;
};

}  // namespace ems::fabric
