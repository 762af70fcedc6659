// What must hold: an address that says nowhere is refused with what is missing; a channel costs
// nothing until it is used; looking for a controller that is away takes milliseconds; what is no
// controller is an error of a call, and nothing worse.
#include "cluster/control_channel.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <string_view>

#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems {
namespace {

using std::chrono::seconds;
// NOLINTBEGIN(misc-unused-using-decls): it does not see literals
using std::string_literals::operator""s;
using std::string_view_literals::operator""sv;
// NOLINTEND(misc-unused-using-decls)

// A web server that speaks HTTP/2 and answers whatever is asked with an empty page.
class WebServer final {
 public:
  WebServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(::bind(listener_.get(), address, size), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener_.get(), address, &size), 0);
    port_ = ntohs(at.sin_port);
    thread_ = Thread("web", [this] { Run(); });
  }
  // The client has hung up.
  ~WebServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.Join();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  static constexpr size_t kPreface = 24, kFrameHead = 9;
  static void Send(int socket, std::string_view bytes) {
    (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Run() {
    const fabric::Fd peer(::accept(listener_.get(), nullptr, nullptr));
    if (!peer.valid()) return;
    Send(peer.get(), "\0\0\0\4\0\0\0\0\0"sv);  // SETTINGS
    std::array<char, 4096> part{};
    std::string came;
    size_t at = kPreface;
    while (true) {
      const ssize_t got = ::recv(peer.get(), part.data(), part.size(), 0);
      if (got <= 0) return;
      came.append(part.data(), static_cast<size_t>(got));
      while (came.size() >= at + kFrameHead) {
        const auto byte = [&](size_t i) { return static_cast<unsigned char>(came[at + i]); };
        const size_t length = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
        if (came.size() < at + kFrameHead + length) break;
        constexpr unsigned char kHeaders = 1;
        // HEADERS that end the stream: ":status: 200".
        if (byte(3) == kHeaders) Send(peer.get(), "\0\0\1\1\5"s + came.substr(at + 5, 4) + "\x88");
        at += kFrameHead + length;
      }
    }
  }

  fabric::Fd listener_;
  uint16_t port_ = 0;
  Thread thread_;
};

TEST(ControlChannelTest, AnAddressNeedsAPortThatSomebodyCanListenOn) {
  EXPECT_TRUE(CheckControllerAddress("localhost:7400").ok());
  EXPECT_TRUE(CheckControllerAddress("[::1]:7400").ok());
  for (const char* bad : {"", "localhost", "localhost:", "localhost:0", "localhost:70000"}) {
    const Status status = CheckControllerAddress(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(Message(status).find("7400 is its port"), std::string_view::npos) << bad;
  }
}

TEST(ControlChannelTest, NothingIsConnectedBeforeACall) {
  const auto channel = MakeControlChannel("127.0.0.1:1", 1 << 20);
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_IDLE);
  const TimePoint begin = Clock::System().Now();
  DriveChannel(channel.get(), Deadline::After(seconds(60)));
  EXPECT_LT(Clock::System().Now() - begin, seconds(10));
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_IDLE) << "only a failed attempt is looked after";
}

TEST(ControlChannelTest, ADeadlineHoldsWhateverTheWallClockSays) {
  grpc::ClientContext context;
  SetDeadline(Deadline::After(seconds(30)), &context);
  const auto left = context.deadline() - std::chrono::system_clock::now();
  EXPECT_GT(left, seconds(25));
  EXPECT_LT(left, seconds(31));
}

TEST(ControlChannelTest, AWebServerThatAnswersIsAnErrorOfTheCall) {
  WebServer web;
  grpc::GenericStub stub(MakeControlChannel(web.address(), 1 << 20));
  grpc::ClientContext context;
  SetDeadline(Deadline::After(seconds(30)), &context);
  grpc::CompletionQueue queue;
  const grpc::Slice bytes("asked");
  const grpc::ByteBuffer request(&bytes, 1);
  grpc::ByteBuffer reply;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, "/ems.v1.Controller/Any", request, &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNKNOWN) << status.error_message();
}

}  // namespace
}  // namespace ems
