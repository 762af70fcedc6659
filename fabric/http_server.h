#pragma once
// Serves HTTP/1.1 to many clients at once: answers whole or as streams, told at once when a client
// goes. For what works on a request for long; the small pages of a daemon are http_endpoint.h.
//
// Bounds, each an option: connections, bytes of a request, bytes that wait for a slow reader, and a
// time for each step. A client that closes its sending side counts as gone.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/status.h"
#include "fabric/http_message.h"

namespace ems::fabric {

namespace internal {
class HttpConnection;
}

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};  // further ones
  std::string body = {};
};

// One request, and the way to its client. Any thread answers it, at any later time, exactly once;
// what is said after the end is ignored. Threading: thread-safe.
class HttpExchange final {
 public:
  HttpExchange(HttpRequest request, size_t unsent_bytes_max, internal::HttpConnection* connection);
  ~HttpExchange();

  const HttpRequest& request() const { return request_; }

  // The whole answer. False, and nothing happens, when an answer was begun or the client is gone.
  bool Reply(const HttpReply& reply);
  // Begins an answer of unknown length; `reply.body` is its first part. False: as Reply.
  bool StartStream(const HttpReply& reply);
  // Goes on with it. Never blocks. False: the client is gone, or has left so much unread that the
  // connection is being closed.
  bool Write(std::string_view bytes);
  // Ends it.
  bool Finish();
  // Closes the connection in the middle; the client sees that the answer is not whole.
  void Abort();

  // Calls once, on the connection's thread, when the client goes before the answer has ended; at
  // once, on the caller's, when that has happened already. Only the latest callback counts.
  void OnGone(std::function<void()> callback);
  // Calls once, on the connection's thread, when the answer has not ended by `at` (to 0.1 s). Only
  // the latest callback counts.
  void OnDeadline(TimePoint at, std::function<void()> callback);

 private:
  friend class internal::HttpConnection;
  enum class Phase { kWaiting, kStreaming, kEnded, kGone };
  struct State {
    Phase phase = Phase::kWaiting;
    internal::HttpConnection* connection = nullptr;  // null: it is over
    std::string unsent;
    size_t in_flight = 0;  // bytes that the connection has taken and not sent yet
    bool wake_posted = false;
    bool abort = false;
    std::function<void()> on_gone;
    TimePoint deadline = TimePoint::max();
    std::function<void()> on_deadline;
  };
  void Append(State* state, std::string_view bytes) const;
  static void Wake(State* state);
  std::string Head(const HttpReply& reply, bool stream) const;

  const HttpRequest request_;
  const size_t unsent_bytes_max_;
  Guarded<State> state_;
};

// Called on a connection's thread for each request; must not block. Whoever keeps the exchange has
// to answer it.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

struct HttpMetrics {
  Gauge connections = {};
  Counter refused = {};       // over connections_max, or out of descriptors
  Counter bad_requests = {};  // not HTTP, or more than the limits
  Counter timeouts = {};      // slow requests, slow readers
  Counter gone = {};          // clients that left before their answer had ended
};

struct HttpServerOptions {
  std::string listen = {};  // host:port; port 0: any
  uint32_t io_threads = 2;
  uint32_t connections_max = 1024;
  HttpLimits limits = {};
  size_t unsent_bytes_max = 1 * kMiB;                  // of one answer that streams
  Duration head_timeout = std::chrono::seconds(10);    // from its first byte to its last
  Duration body_timeout = std::chrono::seconds(30);    // likewise
  Duration write_timeout = std::chrono::seconds(20);   // without one byte taken
  Duration idle_timeout = std::chrono::seconds(60);    // between requests
  Duration answer_timeout = std::chrono::minutes(60);  // then the connection is closed, whatever
  // How the server's own refusals look (400, 408, 413, 431, 503 and so on); plain text without.
  std::function<HttpReply(int status, const std::string& why)> refusal = {};
};

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
