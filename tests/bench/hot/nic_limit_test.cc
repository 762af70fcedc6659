// What must hold: bytes come out as they went in, those from the server no faster than it is said,
// all connections together; those to the server are not held back.
#include "bench/hot/nic_limit.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

namespace ems::bench {
namespace {

using std::chrono::seconds;

fabric::Fd Listen() {
  return *fabric::ListenTcp(fabric::Address{.host = "127.0.0.1", .port = 0, .unix_path = {}});
}

fabric::Fd Accept(const fabric::Fd& listener) {
  pollfd entry{.fd = listener.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
  return fabric::Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

std::string BytesOf(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

void SendAll(const fabric::Fd& socket, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    pollfd entry{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 20'000), 1);
    const ssize_t n =
        ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    ASSERT_GT(n, 0);
    sent += static_cast<size_t>(n);
  }
}

std::string ReceiveAll(const fabric::Fd& socket, size_t count) {
  std::string bytes(count, '\0');
  for (size_t got = 0; got < count;) {
    pollfd entry{.fd = socket.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
    const ssize_t n = ::recv(socket.get(), bytes.data() + got, count - got, MSG_DONTWAIT);
    if (n <= 0) return bytes.substr(0, got);
    got += static_cast<size_t>(n);
  }
  return bytes;
}

struct Pair {
  explicit Pair(NicLimit* nic, const fabric::Fd& listener)
      : client(*fabric::Connect(*fabric::ParseAddress(nic->address()), seconds(20))),
        server(Accept(listener)) {}
  fabric::Fd client, server;
};

TEST(NicLimitTest, BytesComeOutAsTheyWentInAndNoFasterThanItIsSaid) {
  const fabric::Fd listener = Listen();
  constexpr double kRate = 8e6;
  const auto nic = *NicLimit::Start(kRate);
  nic->SetTarget("127.0.0.1:" + std::to_string(fabric::BoundPort(listener.get())));
  Pair one(nic.get(), listener), two(nic.get(), listener);
  const std::string bytes = BytesOf(6'000'000);
  const TimePoint begun = Clock::System().Now();
  {
    Thread first("first", [&] { SendAll(one.server, bytes); });
    Thread second("second", [&] { SendAll(two.server, bytes); });
    Thread other("other", [&] { EXPECT_TRUE(ReceiveAll(two.client, bytes.size()) == bytes); });
    EXPECT_TRUE(ReceiveAll(one.client, bytes.size()) == bytes);
  }
  const double took = std::chrono::duration<double>(Clock::System().Now() - begun).count();
  EXPECT_GE(took, (2 * static_cast<double>(bytes.size()) - NicLimit::kBurstBytes) / kRate);
  EXPECT_EQ(nic->sent_bytes(), 2 * bytes.size());
}

TEST(NicLimitTest, WhatGoesToTheServerIsNotHeldBack) {
  const fabric::Fd listener = Listen();
  const auto nic = *NicLimit::Start(1);  // a byte a second
  nic->SetTarget("127.0.0.1:" + std::to_string(fabric::BoundPort(listener.get())));
  Pair pair(nic.get(), listener);
  const std::string bytes = BytesOf(20'000'000);
  Thread sender("sender", [&] { SendAll(pair.client, bytes); });
  EXPECT_TRUE(ReceiveAll(pair.server, bytes.size()) == bytes);
}

TEST(NicLimitTest, AnEndOnOneSideIsAnEndOnTheOther) {
  const fabric::Fd listener = Listen();
  const auto nic = *NicLimit::Start(1e9);
  nic->SetTarget("127.0.0.1:" + std::to_string(fabric::BoundPort(listener.get())));
  Pair pair(nic.get(), listener);
  SendAll(pair.server, "last");
  pair.server.Close();
  EXPECT_EQ(ReceiveAll(pair.client, 100), "last");
}

TEST(NicLimitTest, WithoutATargetConnectionsAreClosed) {
  const auto nic = *NicLimit::Start(1e9);
  const fabric::Fd client = *fabric::Connect(*fabric::ParseAddress(nic->address()), seconds(20));
  EXPECT_EQ(ReceiveAll(client, 1), "");
}

}  // namespace
}  // namespace ems::bench
