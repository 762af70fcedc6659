#pragma once
#include <gtest/gtest.h>
#include <poll.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fabric/net/fd_message.h"
#include "proto/data_plane.h"
#include "proto/shm_layout.h"

namespace ems::server {

// The client's end of a session. Threading: one thread.
class SessionPeer final {
 public:
  explicit SessionPeer(fabric::Fd socket) : socket_(std::move(socket)) {}
  struct Message {
    shm::SessionMessage message;
    std::vector<fabric::Fd> fds;
    wire::WireStatus status() const { return static_cast<wire::WireStatus>(message.status); }
  };
  // The next message; nullopt: the session has ended, or 10 s have passed.
  std::optional<Message> Next() {
    Message next;
    while (true) {
      const auto outcome = receiver_.Receive(
          socket_.get(), std::as_writable_bytes(std::span(&next.message, 1)), &next.fds);
      if (outcome == fabric::MessageReceiver::Outcome::kMessage) return next;
      if (outcome == fabric::MessageReceiver::Outcome::kEnded) return std::nullopt;
      pollfd wait{socket_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 10'000) <= 0) return std::nullopt;
    }
  }
  void Send(shm::SessionOp op, uint64_t id, uint64_t bytes = 0, int fd = -1) {
    shm::SessionMessage message;
    message.op = op;
    message.id = id;
    message.bytes = bytes;
    EXPECT_TRUE(fabric::SendMessageTo(socket_.get(), wire::RawBytes(message),
                                      std::span(&fd, fd < 0 ? 0 : 1))
                    .ok());
  }
  std::optional<Message> Ask(shm::SessionOp op, uint64_t id, uint64_t bytes = 0, int fd = -1) {
    Send(op, id, bytes, fd);
    return Next();
  }
  int fd() const { return socket_.get(); }
  void HangUp() { socket_.Close(); }

 private:
  fabric::Fd socket_;
  fabric::MessageReceiver receiver_;
};

}  // namespace ems::server
