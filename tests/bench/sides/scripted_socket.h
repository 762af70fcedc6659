#pragma once
// The other end of a ReplySocket in the hands of a test: what it answers is laid out beforehand,
// what it was asked can be read afterwards. Bound: answers and requests fit the socket's buffers.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>

#include "bench/sides/reply_socket.h"

namespace ems::bench::test {

class ScriptedSocket final {
 public:
  ScriptedSocket() {
    std::array<int, 2> fds{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    client_ = fabric::Fd(fds[0]);
    other_ = fabric::Fd(fds[1]);
  }
  // The client's end. Call once.
  ReplySocket Take() { return ReplySocket(std::move(client_)); }
  void Answer(std::string_view text) {
    EXPECT_EQ(write(other_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void HangUp() { other_.Close(); }
  std::string Asked() {
    std::string text(4096, '\0');
    const ssize_t got = recv(other_.get(), text.data(), text.size(), MSG_DONTWAIT);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

 private:
  fabric::Fd client_, other_;
};

inline MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

}  // namespace ems::bench::test
