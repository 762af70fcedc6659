#pragma once
// A coroutine over one end of a socket pair, run on the test's own thread, and the other end.
//
// Bound: Await fails the test after 10 s.
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "common/check.h"
#include "fabric/net/io_threads.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {

// Threading: one thread.
class SocketPair final {
 public:
  // Of one transfer more than one part is moved at a time after `time_per_turn` alone.
  explicit SocketPair(Duration time_per_turn = std::chrono::hours(1)) : turns_(time_per_turn) {
    std::array<int, 2> fds{};
    constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    EMS_CHECK(::socketpair(AF_UNIX, kType, 0, fds.data()) == 0);
    peer_.emplace(fabric::Fd(fds[0]));
    socket_.emplace(context_, asio::generic::stream_protocol(AF_UNIX, 0), fds[1]);
  }
  asio::io_context& context() { return context_; }
  // Of the thread that runs the coroutines.
  fabric::Turns* turns() { return &turns_; }
  WirePeer& peer() { return *peer_; }
  // The end of what is tested; once.
  fabric::StreamSocket TakeSocket() { return *std::exchange(socket_, std::nullopt); }

  // Runs `deed` to its end; nullopt when it takes too long.
  template <typename Value>
  std::optional<Value> Await(asio::awaitable<Value> deed) {
    std::optional<Value> result;
    asio::co_spawn(context_, std::move(deed), [&](const std::exception_ptr& failure, Value value) {
      EMS_CHECK(failure == nullptr);
      result = std::move(value);
    });
    context_.restart();
    const Deadline deadline = Deadline::After(std::chrono::seconds(10));
    while (!result && !deadline.Passed()) context_.run_one_for(std::chrono::milliseconds(10));
    return result;
  }

 private:
  fabric::Turns turns_;  // before the context, whose coroutines use them
  asio::io_context context_{1};
  std::optional<WirePeer> peer_;
  std::optional<fabric::StreamSocket> socket_;
};

}  // namespace ems::testing
