#pragma once
// Addresses and sockets: "host:port", "[v6]:port" or "unix:/path".
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
  // The descriptor, for another owner.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct Address {
  std::string host;  // without brackets; empty for a Unix socket
  uint16_t port = 0;
  std::string unix_path;  // empty for TCP
  bool is_unix() const { return !unix_path.empty(); }
  // Nobody has to be asked where it is, and it is one place.
  bool is_literal() const;
};
// Errors: kInvalidArgument  naming what is wrong with `text`
Result<Address> ParseAddress(std::string_view text);
std::string FormatHostPort(std::string_view host, uint16_t port);

// Connects a non-blocking stream socket (TCP: no delay, keep-alive). Of a name with several
// addresses each is tried. Takes no longer than `timeout`, for the name and all addresses together
// (name_lookup.h). Errors: kUnavailable  refused or unreachable    kDeadlineExceeded
// kInvalidArgument  bad address
Result<Fd> Connect(const Address& address, Duration timeout);
// Begins to connect such a socket: it can be written to once it is connected; when it cannot be,
// the next use of it says so. Of a name that has several addresses it takes the `attempt`-th,
// modulo their number. Waits for a name that it does not know yet, 20 ms at most. Errors: as
// Connect
Result<Fd> StartConnect(const Address& address, uint32_t attempt);

// A non-blocking socket that listens on a TCP address (port 0: any). Waits for a name, 30 s at
// most. Errors: kUnavailable  in use, not allowed, or not an address of this machine
Result<Fd> ListenTcp(const Address& address);
// The port that a TCP socket is bound to.
uint16_t BoundPort(int socket);

// "errno text", for messages.
std::string ErrnoText(int error);
// Who is at the other end of a connection: "10.0.0.7:43210", "[::1]:43210", of a Unix socket
// "pid 4711"; empty: it is not known. Cost: system calls.
std::string PeerText(int socket);

// A string equal for all processes of this machine until it boots again, and different elsewhere.
std::string HostId();

// Of a TCP address "host:port" at which this process listens: a number that no other process of
// this or another machine has while this one lives, and that the next one that listens there has,
// until the machine boots again. Two containers may have one name and one address, and have
// namespaces of the network of their own. 0: not known, as of a host that is a name.
uint64_t ListenerId(const std::string& bound);

}  // namespace ems::fabric
