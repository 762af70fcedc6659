#include "common/service_notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

namespace ems {
namespace {

// The service manager's end: a datagram socket bound to `name`, a path or '@' and an abstract name.
class Listener final {
 public:
  explicit Listener(const std::string& name)
      : name_(name), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), length), 0);
  }
  ~Listener() {
    ::close(fd_);
    if (name_[0] == '/') ::unlink(name_.c_str());
  }
  // What came next; empty: nothing has.
  std::string Next() const {
    std::array<char, 256> text{};
    const ssize_t bytes = ::recv(fd_, text.data(), text.size(), MSG_DONTWAIT);
    return bytes > 0 ? std::string(text.data(), static_cast<size_t>(bytes)) : std::string();
  }

 private:
  const std::string name_;
  const int fd_;
};

TEST(ServiceNotifyTest, EachStateIsADatagram) {
  const std::string unique = "ems_notify." + std::to_string(::getpid());
  for (const std::string& name : {"/tmp/" + unique, "@" + unique}) {
    const Listener manager(name);
    ASSERT_EQ(NotifyService(name, "READY=1"), OkStatus());
    ASSERT_EQ(NotifyService(name, "STOPPING=1"), OkStatus());
    EXPECT_EQ(manager.Next(), "READY=1") << name;
    EXPECT_EQ(manager.Next(), "STOPPING=1") << name;
    EXPECT_EQ(manager.Next(), "");
  }
}

TEST(ServiceNotifyTest, WithoutASocketNobodyIsTold) {
  EXPECT_EQ(NotifyService("", "READY=1"), OkStatus());
}

TEST(ServiceNotifyTest, ASocketThatCannotBeIsNamed) {
  EXPECT_EQ(NotifyService("relative/path", "READY=1").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(NotifyService("/" + std::string(200, 'x'), "READY=1").code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(NotifyService("/tmp/no such socket", "READY=1").code(), StatusCode::kUnavailable);
}

TEST(ServiceNotifyTest, AManagerThatDoesNotReadHoldsNobodyUp) {
  const std::string name = "@ems_notify_full." + std::to_string(::getpid());
  const Listener manager(name);
  Status sent = OkStatus();
  for (int i = 0; i < 100'000 && sent.ok(); ++i) sent = NotifyService(name, "STATUS=again");
  EXPECT_EQ(sent.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems
