#pragma once
// One request of an HttpServer and the way to its client: an answer, whole or as a stream.
//
// Bound: bytes of a stream that its client has not taken, and then the connection is closed.
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/guarded.h"
#include "fabric/http/http_message.h"

namespace ems::fabric {

namespace internal {
class HttpConnection;

// Of the connection that an exchange came by.
class HttpWaker {
 public:
  virtual ~HttpWaker() = default;
  // There is something to send. On any thread, under the exchange's lock; must not call it.
  virtual void PostWake() = 0;
};
}  // namespace internal

// One request, and the way to its client. Any thread answers it, at any later time, exactly once;
// what is said after the end is ignored. Threading: thread-safe.
class HttpExchange final {
 public:
  HttpExchange(HttpRequest request, size_t unsent_bytes_max, internal::HttpWaker* connection);
  ~HttpExchange();

  const HttpRequest& request() const { return request_; }

  // The whole answer. False, and nothing happens, when an answer was begun or the client is gone.
  bool Reply(const HttpReply& reply);
  // Begins an answer of unknown length; `reply.body` is its first part. False: as Reply.
  bool StartStream(const HttpReply& reply);
  // Goes on with it. Never blocks. False: the client is gone, or has left so much unread that the
  // connection is being closed.
  bool Write(std::string_view bytes);
  // What the kernel has not taken of the answer; 0 when it is over.
  size_t unsent_bytes();
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
    internal::HttpWaker* connection = nullptr;  // null: it is over
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

// Called on a connection's thread for each request; must not block. The holder of the exchange has
// to answer it.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

}  // namespace ems::fabric
