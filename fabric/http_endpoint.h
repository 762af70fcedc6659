#pragma once
// A daemon's small HTTP port: /metrics, /healthz and /readyz, and what a daemon adds to be told.
// Not for payloads.
//
// Bound: 2 threads, 64 waiting connections, 8 KiB of request, 2 s for each read and write.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "common/status.h"

namespace ems::fabric {

// Threading: thread-safe. The callbacks run on the "ems-http" threads.
class HttpEndpoint final {
 public:
  // One more page, which takes a text by POST: 200 for OK, 400 with the reason otherwise.
  struct PostPage {
    std::string path;
    std::function<Status(const std::string& body)> take;
  };

  // Serves on `listen` (host:port, port 0: any) at once. `metrics` must outlive the endpoint.
  // `healthy` and `ready` answer 200 for OK, 503 with the text otherwise; `before_render` (may be
  // empty) refreshes gauges before each /metrics. Errors: kInvalidArgument  bad address
  // kUnavailable  cannot bind
  static Result<std::unique_ptr<HttpEndpoint>> Start(const std::string& listen,
                                                     const MetricsRegistry* metrics,
                                                     std::function<Status()> healthy,
                                                     std::function<Status()> ready,
                                                     std::function<void()> before_render = {},
                                                     const std::vector<PostPage>& posts = {});
  ~HttpEndpoint();
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;
  int port() const;
  // host:port as bound.
  const std::string& address() const;

 private:
  struct Impl;
  explicit HttpEndpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::fabric
