#pragma once
// The OpenAI-compatible door of the serving loop: completions and chat, plain or streaming, models,
// health, metrics. docs/SERVING_API.md is its manual.
#include <functional>
#include <memory>
#include <string>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/status.h"
#include "pdc/api/generate.h"

namespace ems::pdc::api {

// Options and limits of an ApiServer. A request that exceeds a limit is refused with an error that
// names it.
struct ApiOptions {
  std::string listen = "127.0.0.1:8000";  // host:port; port 0: any
  uint32_t io_threads = 2;
  uint32_t connections_max = 1024;     // then 503
  uint32_t requests_max = 256;         // generations at a time, queued ones too; then 429
  size_t body_bytes_max = 4 * kMiB;    // then 413
  uint64_t prompt_tokens_max = 0;      // 0: what the model's context holds
  uint64_t completion_tokens_max = 0;  // likewise
  Duration request_timeout = std::chrono::minutes(10);  // also the most that a client may ask for
  std::function<void()> before_metrics{};  // refreshes gauges before each /metrics; may be empty
};

// Threading: Start and Stop from one thread; the rest runs on "ems-http-N" and on the generator's.
class ApiServer final {
 public:
  // Serves at once. `generator` and `metrics` must outlive the server and every generation, whose
  // last events may come after it. Errors: kInvalidArgument  bad address    kUnavailable  cannot
  // bind
  static Result<std::unique_ptr<ApiServer>> Start(const ApiOptions& options, Generator* generator,
                                                  MetricsRegistry* metrics);
  ~ApiServer();  // Stop() without patience
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // host:port as bound.
  const std::string& address() const;
  // Takes no more requests, lets those in hand end for up to `patience`, then cancels the rest.
  void Stop(Duration patience);

 private:
  struct Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc::api
