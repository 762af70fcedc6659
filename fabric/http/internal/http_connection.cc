#include "fabric/http/internal/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::fabric::internal {
namespace {

constexpr size_t kReadBytes = 16 * kKiB;
constexpr size_t kAheadBytesMax = 64 * kKiB;
constexpr Duration kLinger = std::chrono::seconds(2);
constexpr size_t kLingerBytesMax = 16 * kMiB;

}  // namespace

HttpConnection::HttpConnection(StreamSocket socket, HttpShared* shared)
    : socket_(std::move(socket)),
      shared_(shared),
      parser_(shared->options.limits),
      buffer_(kReadBytes) {
  shared_->metrics.connections.Add(1);
}

HttpConnection::~HttpConnection() { shared_->metrics.connections.Add(-1); }

void HttpConnection::Start(std::function<void()> ended) {
  ended_ = std::move(ended);
  SetDeadline(shared_->options.head_timeout);
  Read();
}

void HttpConnection::SetDeadline(Duration timeout) { deadline_ = Clock::System().Now() + timeout; }

void HttpConnection::CheckDeadline(TimePoint now) {
  if (exchange_ != nullptr) {
    std::function<void()> due;
    {
      auto state = exchange_->state_.Lock();
      if (now >= state->deadline) {
        state->deadline = TimePoint::max();
        due = std::exchange(state->on_deadline, nullptr);
      }
    }
    if (due) due();
  }
  if (closed() || (now < deadline_ && now < write_deadline_)) return;
  const bool slow_request = exchange_ == nullptr && parser_.begun() && !deaf_;
  if (now >= write_deadline_ || exchange_ != nullptr || slow_request) {
    shared_->metrics.timeouts.Add();
  }
  if (slow_request && !sending_) {
    Refuse(408, parser_.in_body() ? "the request's body came too slowly"
                                  : "the request's head came too slowly");
    return;
  }
  Close();
}

void HttpConnection::CloseIdle() {
  if (exchange_ == nullptr && !sending_ && !deaf_) Close();
}

void HttpConnection::Close() {
  if (closed()) return;
  asio::error_code ignored;
  socket_.close(ignored);
  ended_();
  const std::shared_ptr<HttpExchange> exchange = std::exchange(exchange_, nullptr);
  if (exchange == nullptr) return;
  // Callbacks end after the lock: what they hold may have something to say to the exchange.
  std::function<void()> tell, unused;
  auto state = exchange->state_.Lock();
  state->connection = nullptr;
  unused = std::exchange(state->on_deadline, nullptr);
  tell = std::exchange(state->on_gone, nullptr);
  // An answer that had ended and was not sent yet is nobody's concern any more.
  const bool ended = state->phase == HttpExchange::Phase::kEnded;
  state->phase = HttpExchange::Phase::kGone;
  state.Unlock();
  shared_->metrics.gone.Add();
  shared_->in_hand->fetch_sub(1, std::memory_order_release);
  if (tell && !ended) tell();
}

void HttpConnection::PostWake() {
  asio::post(socket_.get_executor(), [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self != nullptr) self->Flush();
  });
}

void HttpConnection::Read() {
  if (reading_ || closed()) return;
  reading_ = true;
  socket_.async_read_some(
      asio::buffer(buffer_), [self = shared_from_this()](asio::error_code error, size_t bytes) {
        self->reading_ = false;
        if (error == asio::error::eof && self->AnswerIsComplete()) {
          self->close_after_ = true;  // it asked, closed its side and waits for the answer
        } else if (error) {
          self->Close();
        } else if (!self->closed()) {
          self->OnRead(bytes);
        }
      });
}

void HttpConnection::OnRead(size_t bytes) {
  if (deaf_) {
    thrown_away_ += bytes;
    if (thrown_away_ > kLingerBytesMax) return Close();
    return Read();
  }
  ahead_.append(buffer_.data(), bytes);
  if (exchange_ != nullptr) {
    if (ahead_.size() > kAheadBytesMax) return Close();
  } else {
    Advance();
  }
  Read();
}

void HttpConnection::Advance() {
  const bool had_begun = parser_.begun();
  const bool was_in_body = parser_.in_body();
  ahead_.erase(0, parser_.Feed(ahead_));
  if (parser_.failed()) return Refuse(parser_.error_status(), parser_.error());
  if (parser_.done()) return Dispatch();
  if (parser_.in_body() && !was_in_body) {
    SetDeadline(shared_->options.body_timeout);
    if (parser_.expects_continue() && parser_.request().body.empty() && !said_continue_) {
      said_continue_ = true;
      next_ += "HTTP/1.1 100 Continue\r\n\r\n";
      Send();
    }
  } else if (parser_.begun() && !had_begun) {
    SetDeadline(shared_->options.head_timeout);
  }
}

void HttpConnection::Dispatch() {
  if (shared_->stopping.load(std::memory_order_acquire)) {
    return Refuse(503, "the server is stopping");
  }
  EMS_CHECK(exchange_ == nullptr, "a request before the answer to the last one");
  parser_.request().keep_alive &= shared_->options.keep_alive;
  close_after_ = !parser_.request().keep_alive;
  answer_ended_ = false;
  exchange_ = std::make_shared<HttpExchange>(std::move(parser_.request()),
                                             shared_->options.unsent_bytes_max, this);
  parser_ = HttpParser(shared_->options.limits);
  said_continue_ = false;
  SetDeadline(shared_->options.answer_timeout);
  shared_->in_hand->fetch_add(1, std::memory_order_relaxed);
  shared_->handler(exchange_);
}

void HttpConnection::Refuse(int status, const std::string& why) {
  EMS_CHECK(exchange_ == nullptr, "a refusal of what was handed over");
  shared_->metrics.bad_requests.Add();
  HttpReply reply{
      .status = status, .content_type = "text/plain", .headers = {}, .body = why + "\n"};
  if (shared_->options.refusal) reply = shared_->options.refusal(status, why);
  // What follows a broken request cannot be told from its rest.
  HttpRequest request = std::move(parser_.request());
  request.keep_alive = false;
  deaf_ = true;
  close_after_ = true;
  answer_ended_ = false;
  exchange_ =
      std::make_shared<HttpExchange>(std::move(request), shared_->options.unsent_bytes_max, this);
  parser_ = HttpParser(shared_->options.limits);
  ahead_.clear();
  SetDeadline(shared_->options.write_timeout);
  shared_->in_hand->fetch_add(1, std::memory_order_relaxed);
  exchange_->Reply(reply);
}

bool HttpConnection::AnswerIsComplete() {
  if (exchange_ == nullptr) return false;
  auto state = exchange_->state_.Lock();
  return state->phase == HttpExchange::Phase::kEnded && !state->abort;
}

void HttpConnection::Flush() {
  if (closed() || exchange_ == nullptr) return;
  auto state = exchange_->state_.Lock();
  state->wake_posted = false;
  next_ += state->unsent;
  state->unsent.clear();
  state->in_flight = unsent_bytes();
  answer_ended_ = state->phase == HttpExchange::Phase::kEnded;
  const bool abort = state->abort;
  state.Unlock();
  if (abort) return Close();
  Send();
}

void HttpConnection::Send() {
  if (sending_ || closed()) return;
  if (sent_ == out_.size()) {
    out_ = std::exchange(next_, {});
    sent_ = 0;
  }
  if (out_.empty()) {
    write_deadline_ = TimePoint::max();
    if (answer_ended_ && exchange_ != nullptr) EndAnswer();
    return;
  }
  sending_ = true;
  write_deadline_ = Clock::System().Now() + shared_->options.write_timeout;
  socket_.async_write_some(asio::buffer(out_.data() + sent_, out_.size() - sent_),
                           [self = shared_from_this()](asio::error_code error, size_t bytes) {
                             self->sending_ = false;
                             if (error) {
                               self->Close();
                             } else if (!self->closed()) {
                               self->OnSent(bytes);
                             }
                           });
}

void HttpConnection::OnSent(size_t bytes) {
  sent_ += bytes;
  if (exchange_ != nullptr) {
    auto state = exchange_->state_.Lock();
    state->in_flight = unsent_bytes();
  }
  Send();
}

void HttpConnection::EndAnswer() {
  EMS_CHECK(unsent_bytes() == 0, "{} bytes of the answer are not sent", unsent_bytes());
  {
    const std::shared_ptr<HttpExchange> exchange = std::exchange(exchange_, nullptr);
    std::function<void()> on_gone, on_deadline;
    auto state = exchange->state_.Lock();
    state->connection = nullptr;
    on_gone = std::exchange(state->on_gone, nullptr);
    on_deadline = std::exchange(state->on_deadline, nullptr);
    state.Unlock();
  }
  answer_ended_ = false;
  shared_->in_hand->fetch_sub(1, std::memory_order_release);
  if (close_after_ || shared_->stopping.load(std::memory_order_acquire)) return Linger();
  SetDeadline(shared_->options.idle_timeout);
  // A client may have sent its next request meanwhile. Not from here: answers that are there at
  // once would nest.
  if (!ahead_.empty()) {
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      if (!self->closed() && self->exchange_ == nullptr && !self->ahead_.empty()) self->Advance();
    });
  }
}

// A close with unread bytes is a reset, which may take the answer from the client again.
void HttpConnection::Linger() {
  deaf_ = true;
  asio::error_code ignored;
  socket_.shutdown(StreamSocket::shutdown_send, ignored);
  ahead_.clear();
  SetDeadline(kLinger);
  Read();
}

}  // namespace ems::fabric::internal
