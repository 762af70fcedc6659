#pragma once
// Addresses and client-side sockets: "host:port", "[v6]:port" or "unix:/path".
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::fabric {

// Owns a file descriptor. Move-only. Threading: one thread (holder).
class Fd final {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { Close(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

struct Address {
  std::string host;  // without brackets; empty for a Unix socket
  uint16_t port = 0;
  std::string unix_path;  // empty for TCP
  bool is_unix() const { return !unix_path.empty(); }
};
// Errors: kInvalidArgument  naming what is wrong with `text`
Result<Address> ParseAddress(std::string_view text);
std::string FormatHostPort(std::string_view host, uint16_t port);

// Connects a non-blocking stream socket (TCP: no delay, keep-alive). May block on name resolution
// when the host is a name; otherwise no longer than `timeout`. Errors: kUnavailable  refused or
// unreachable    kDeadlineExceeded    kInvalidArgument  bad address
Result<Fd> Connect(const Address& address, Duration timeout);

// "errno text", for messages.
std::string ErrnoText(int error);

// A string equal for all processes of this machine until it boots again, and different elsewhere.
std::string HostId();

}  // namespace ems::fabric
