#pragma once
// A child process in a network of its own, where a test may use any address, port and route without
// a privilege outside, where the system lets users make namespaces.
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "common/check.h"
#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::testing {

// What `run` returns, up to 4 KB, from a child process that ends with it; empty when it crashes.
// The caller has one thread.
inline std::string InAChild(const std::function<std::string()>& run) {
  int ends[2];
  EMS_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "{}", fabric::ErrnoText(errno));
  const fabric::Fd told(ends[0]);
  fabric::Fd tells(ends[1]);
  const pid_t child = ::fork();
  EMS_CHECK(child >= 0, "{}", fabric::ErrnoText(errno));
  if (child == 0) {
    const std::string text = run();
    const bool written = ::write(tells.get(), text.data(), text.size()) >= 0;
    ::_exit(written ? 0 : 1);
  }
  tells.Close();
  std::array<char, 4096> text{};
  const ssize_t bytes = ::read(told.get(), text.data(), text.size());
  EMS_CHECK(::waitpid(child, nullptr, 0) == child);
  return std::string(text.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

// Takes this process, which has one thread, to a network of its own with a loopback device alone;
// and, with CLONE_NEWNS in `more`, to mounts of its own. Errors: kPermissionDenied  not here
inline Status EnterOwnNetwork(int more = 0) {
  if (::unshare(CLONE_NEWNET | more) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET | more) != 0)
    return Error(StatusCode::kPermissionDenied, "no namespace: {}", fabric::ErrnoText(errno));
  // So that what is mounted from here on is seen here alone.
  if ((more & CLONE_NEWNS) != 0 &&
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return Error(StatusCode::kPermissionDenied, "no mounts: {}", fabric::ErrnoText(errno));
  const fabric::Fd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  if (::ioctl(any.get(), SIOCSIFFLAGS, &loopback) != 0)
    return Error(StatusCode::kPermissionDenied, "no loopback: {}", fabric::ErrnoText(errno));
  return OkStatus();
}

}  // namespace ems::testing
