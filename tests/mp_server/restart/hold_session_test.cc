// What must hold: a message that is none of the protocol's, or says more than came, is refused; and
// a peer that says nothing is not waited for for ever.
#include "mp_server/restart/hold_session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "mp_server/restart/fd_store.h"

namespace ems::server {
namespace {

class HoldSessionTest : public ::testing::Test {
 protected:
  HoldSessionTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    here_ = fabric::Fd(ends[0]);
    there_ = fabric::Fd(ends[1]);
  }
  static Deadline InAWhile(int ms = 5000) { return Deadline::After(std::chrono::milliseconds(ms)); }
  Status Received() {
    fabric::MessageReceiver receiver;
    std::vector<fabric::Fd> fds;
    return ReceiveHold(here_.get(), &receiver, &fds, InAWhile()).status();
  }
  Status ReceivedFds(uint64_t count, int ms = 5000) {
    fabric::MessageReceiver receiver;
    return ReceiveHeld(here_.get(), &receiver, count, InAWhile(ms)).status();
  }

  fabric::Fd here_, there_;
};

TEST_F(HoldSessionTest, MessagesOfOthersAreRefused) {
  HoldMessage message{.op = HoldOp::kTake};
  message.magic = 1;
  ASSERT_EQ(SendHold(there_.get(), message, {}, InAWhile()), OkStatus());
  EXPECT_EQ(Received().code(), StatusCode::kDataLoss);
}

TEST_F(HoldSessionTest, MoreThanMayBeHeldIsRefused) {
  ASSERT_EQ(SendHold(there_.get(), {.op = HoldOp::kPut, .count = kFdsHeldMax + 1}, {}, InAWhile()),
            OkStatus());
  EXPECT_EQ(Received().code(), StatusCode::kDataLoss);
}

TEST_F(HoldSessionTest, AMessageThatSaysMoreThanCameIsRefused) {
  const int fd = there_.get();
  ASSERT_EQ(SendHold(there_.get(), {.op = HoldOp::kFds, .count = 2}, {&fd, 1}, InAWhile()),
            OkStatus());
  EXPECT_EQ(ReceivedFds(2).code(), StatusCode::kDataLoss);
  ASSERT_EQ(SendHold(there_.get(), {.op = HoldOp::kFds, .count = 0}, {}, InAWhile()), OkStatus());
  EXPECT_EQ(ReceivedFds(2).code(), StatusCode::kDataLoss);
}

TEST_F(HoldSessionTest, MoreThanWereAnnouncedAreRefused) {
  const std::array<int, 3> fds = {there_.get(), there_.get(), there_.get()};
  ASSERT_EQ(SendHeld(there_.get(), fds, InAWhile()), OkStatus());
  EXPECT_EQ(ReceivedFds(2).code(), StatusCode::kDataLoss);
}

TEST_F(HoldSessionTest, SilenceAndHangingUpEndIt) {
  EXPECT_EQ(ReceivedFds(1, 30).code(), StatusCode::kDeadlineExceeded);
  there_.Close();
  EXPECT_EQ(Received().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::server
