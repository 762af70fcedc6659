// What must hold: a message that is none of the protocol's, or says more than came, is refused; and
// a peer that says nothing is not waited for for ever, and one of another user gets nothing.
#include "mp_server/restart/hold_session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "mp_server/restart/fd_store.h"
#include "tests/support/temp_path.h"

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

// As a folder like /tmp allows: the name was free, and somebody else was first.
TEST_F(HoldSessionTest, AHolderOfAnotherUserIsGivenNothingAndNothingIsTakenFromIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  constexpr uid_t kNobody = 65534;
  const testing::TempPath path("holder.sock");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.path().c_str(), path.path().size());
  const fabric::Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::seteuid(kNobody), 0);
  const int listens = ::listen(listener.get(), 8);  // whose it is, from now on
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_EQ(listens, 0);
  const int fd = there_.get();
  const Status put = PutHeld(path.path(), {&fd, 1}, InAWhile());
  EXPECT_EQ(put.code(), StatusCode::kPermissionDenied) << put;
  EXPECT_NE(Message(put).find("user 65534 listens there"), std::string_view::npos) << put;
  EXPECT_EQ(TakeHeld(path.path(), InAWhile()).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(HolderStore(path.path()), nullptr);
}

}  // namespace
}  // namespace ems::server
