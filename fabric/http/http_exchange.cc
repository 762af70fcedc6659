#include "fabric/http/http_exchange.h"

#include <fmt/core.h>

#include <utility>

#include "common/check.h"

namespace ems::fabric {

HttpExchange::HttpExchange(HttpRequest request, size_t unsent_bytes_max,
                           internal::HttpWaker* connection)
    : request_(std::move(request)), unsent_bytes_max_(unsent_bytes_max) {
  EMS_CHECK(connection != nullptr);
  auto state = state_.Lock();
  state->connection = connection;
}

HttpExchange::~HttpExchange() = default;

void HttpExchange::Wake(State* state) {
  if (state->wake_posted || state->connection == nullptr) return;
  state->wake_posted = true;
  state->connection->PostWake();
}

std::string HttpExchange::Head(const HttpReply& reply, bool stream) const {
  const bool chunked = stream && !request_.http_1_0;
  const std::optional<size_t> length =
      stream ? std::nullopt : std::optional<size_t>(reply.body.size());
  return HttpHead(reply, length, chunked, request_.keep_alive);
}

// One chunk of a stream.
void HttpExchange::Append(State* state, std::string_view bytes) const {
  if (bytes.empty() || request_.method == "HEAD") return;  // an empty chunk would be the end
  if (request_.http_1_0) {
    state->unsent += bytes;
  } else {
    state->unsent += fmt::format("{:x}\r\n", bytes.size());
    state->unsent.append(bytes).append("\r\n");
  }
}

bool HttpExchange::Reply(const HttpReply& reply) {
  const std::string head = Head(reply, false);
  auto state = state_.Lock();
  if (state->phase != Phase::kWaiting) return false;
  state->phase = Phase::kEnded;
  state->unsent += head;
  if (request_.method != "HEAD") state->unsent += reply.body;
  Wake(&*state);
  return true;
}

bool HttpExchange::StartStream(const HttpReply& reply) {
  const std::string head = Head(reply, true);
  auto state = state_.Lock();
  if (state->phase != Phase::kWaiting) return false;
  state->phase = Phase::kStreaming;
  state->unsent += head;
  Append(&*state, reply.body);
  Wake(&*state);
  return true;
}

bool HttpExchange::Write(std::string_view bytes) {
  auto state = state_.Lock();
  if (state->phase != Phase::kStreaming || state->abort) return false;
  if (state->unsent.size() + state->in_flight + bytes.size() > unsent_bytes_max_) {
    state->abort = true;
  } else {
    Append(&*state, bytes);
  }
  Wake(&*state);
  return !state->abort;
}

size_t HttpExchange::unsent_bytes() {
  auto state = state_.Lock();
  return state->connection == nullptr ? 0 : state->unsent.size() + state->in_flight;
}

bool HttpExchange::Finish() {
  auto state = state_.Lock();
  if (state->phase != Phase::kStreaming || state->abort) return false;
  state->phase = Phase::kEnded;
  if (!request_.http_1_0 && request_.method != "HEAD") state->unsent += "0\r\n\r\n";
  Wake(&*state);
  return true;
}

void HttpExchange::Abort() {
  auto state = state_.Lock();
  if (state->connection == nullptr) return;
  state->abort = true;
  Wake(&*state);
}

void HttpExchange::OnGone(std::function<void()> callback) {
  {
    auto state = state_.Lock();
    if (state->phase != Phase::kGone) {
      if (state->connection != nullptr) state->on_gone.swap(callback);
      return;  // the lock ends before the callback that was there
    }
  }
  callback();
}

void HttpExchange::OnDeadline(TimePoint at, std::function<void()> callback) {
  auto state = state_.Lock();
  if (state->connection == nullptr) return;
  state->deadline = at;
  state->on_deadline.swap(callback);
}

}  // namespace ems::fabric
