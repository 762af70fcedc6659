#pragma once
// One connection of an HttpServer: reads a request, hands it over, sends the answer as it comes,
// again. Meanwhile it goes on reading, so that a client that leaves is noticed at once.
//
// The whole object lives on one io_context that one thread runs; only Wake's posting comes from
// elsewhere, under the exchange's lock.
// Bound: what a client sends ahead while it waits, 64 KiB; beyond it the connection is closed.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/http/http_exchange.h"
#include "fabric/http/http_options.h"
#include "fabric/net/io_threads.h"

namespace ems::fabric::internal {

// The state that the connections of one server share. Outlives them.
struct HttpShared {
  HttpServerOptions options;
  HttpHandler handler;
  HttpMetrics metrics;
  std::atomic<int>* in_hand = nullptr;  // requests whose answers have not been sent
  std::atomic<bool> stopping{false};
};

// Threading: one thread (the io_context's).
class HttpConnection final : public IoConnection,
                             public HttpWaker,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(StreamSocket socket, HttpShared* shared);
  ~HttpConnection() override;

  // Calls `ended` once, when the connection is closed.
  void Start(std::function<void()> ended);
  // Keeps the exchange's deadline, too.
  void CheckDeadline(TimePoint now) override;
  void CloseIdle() override;
  void Abandon() override { Close(); }
  void PostWake() override;

 private:
  // Closes, and tells the exchange.
  void Close();
  bool closed() const { return !socket_.is_open(); }
  void Read();
  void OnRead(size_t bytes);
  // Parses what has been received; at the end of a request hands it over.
  void Advance();
  void Dispatch();
  void Refuse(int status, const std::string& why);
  // Takes what the exchange has to send.
  void Flush();
  void Send();
  void OnSent(size_t bytes);
  // The answer has been sent as a whole.
  void EndAnswer();
  void Linger();
  void SetDeadline(Duration timeout);
  // The exchange will say no more, though not all may be sent.
  bool AnswerIsComplete();
  size_t unsent_bytes() const { return out_.size() - sent_ + next_.size(); }

  StreamSocket socket_;
  HttpShared* const shared_;
  std::function<void()> ended_;
  HttpParser parser_;
  std::shared_ptr<HttpExchange> exchange_;  // of the request in hand
  std::vector<char> buffer_;
  std::string ahead_;  // received, not parsed
  std::string out_;    // being sent; stays where it is meanwhile
  std::string next_;   // to be sent after it
  size_t sent_ = 0;
  bool sending_ = false;
  bool reading_ = false;
  bool answer_ended_ = false;  // the exchange will say no more
  bool close_after_ = false;   // this answer is the last one
  bool deaf_ = false;          // what comes is thrown away: all is said, or nonsense was heard
  size_t thrown_away_ = 0;
  bool said_continue_ = false;
  TimePoint deadline_ = TimePoint::max();  // of the present step
  TimePoint write_deadline_ = TimePoint::max();
};

}  // namespace ems::fabric::internal
