#include "fabric/net/fd_message.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace ems::fabric {
namespace {

using Outcome = MessageReceiver::Outcome;

class FdMessageTest : public ::testing::Test {
 protected:
  FdMessageTest() {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    near_ = Fd(fds[0]);
    far_ = Fd(fds[1]);
  }
  static int OpenFds() {
    int count = 0;
    for (int fd = 0; fd < 256; ++fd) count += ::dup2(fd, fd) == fd ? 1 : 0;
    return count;
  }
  Fd near_, far_;
  std::array<std::byte, 16> in_{};
  std::vector<Fd> fds_;
};

TEST_F(FdMessageTest, DescriptorsArriveWithTheirMessage) {
  const Fd memory(memfd_create("test", MFD_CLOEXEC));
  const int fd = memory.get();
  const std::array<std::byte, 16> first{std::byte{1}}, second{std::byte{2}};
  ASSERT_TRUE(SendMessageTo(near_.get(), first, std::span(&fd, 1)).ok());
  ASSERT_TRUE(SendMessageTo(near_.get(), second, {}).ok());
  MessageReceiver receiver;
  ASSERT_EQ(receiver.Receive(far_.get(), in_, &fds_), Outcome::kMessage);
  EXPECT_EQ(in_, first);
  ASSERT_EQ(fds_.size(), 1u);
  EXPECT_EQ(ftruncate(fds_[0].get(), 4096), 0);
  ASSERT_EQ(receiver.Receive(far_.get(), in_, &fds_), Outcome::kMessage);
  EXPECT_EQ(in_, second);
  EXPECT_TRUE(fds_.empty());
  EXPECT_EQ(receiver.Receive(far_.get(), in_, &fds_), Outcome::kNotYet);
}

TEST_F(FdMessageTest, AMessageInPiecesIsPutTogether) {
  const std::array<std::byte, 16> whole{std::byte{7}, std::byte{8}};
  MessageReceiver receiver;
  ASSERT_EQ(write(near_.get(), whole.data(), 1), 1);
  EXPECT_EQ(receiver.Receive(far_.get(), in_, &fds_), Outcome::kNotYet);
  ASSERT_EQ(write(near_.get(), whole.data() + 1, 15), 15);
  ASSERT_EQ(receiver.Receive(far_.get(), in_, &fds_), Outcome::kMessage);
  EXPECT_EQ(in_, whole);
}

TEST_F(FdMessageTest, FloodsOfDescriptorsEndTheStreamAndLeakNothing) {
  const int before = OpenFds();
  {
    MessageReceiver receiver;
    const Fd memory(memfd_create("test", MFD_CLOEXEC));
    const std::array<int, kFdsMax> many{memory.get(), memory.get(), memory.get(), memory.get()};
    const std::array<std::byte, 1> piece{};
    ASSERT_TRUE(SendMessageTo(near_.get(), piece, many).ok());
    ASSERT_TRUE(SendMessageTo(near_.get(), piece, many).ok());
    EXPECT_EQ(receiver.Receive(far_.get(), in_, &fds_), Outcome::kEnded);
  }
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(FdMessageTest, APeerThatDoesNotReadIsAnErrorAndNotAWait) {
  const std::array<std::byte, 128> message{};
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    status = SendMessageTo(near_.get(), message, {});
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST_F(FdMessageTest, TheEndOfThePeerIsSeen) {
  far_.Close();
  EXPECT_EQ(SendMessageTo(near_.get(), in_, {}).code(), StatusCode::kUnavailable);
  MessageReceiver receiver;
  EXPECT_EQ(receiver.Receive(near_.get(), in_, &fds_), Outcome::kEnded);
}

TEST_F(FdMessageTest, CredentialsNameThePeer) {
  const auto peer = CredentialsOf(near_.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  const Fd tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(CredentialsOf(tcp.get()).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::fabric
