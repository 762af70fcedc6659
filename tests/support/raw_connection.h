#pragma once
// A plain loopback socket for tests that speak the wire themselves, or speak nonsense.
#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace ems::testing {

// A blocking TCP connection to "127.0.0.1:port", or another IPv4 address; the descriptor, owned by
// the caller.  Errors: kUnavailable
Result<int> ConnectTcp(const std::string& address);

// Threading: one thread.
class RawConnection final {
 public:
  // Connects.  Errors: kUnavailable
  static Result<RawConnection> Open(const std::string& address);
  RawConnection(RawConnection&& other) noexcept;
  RawConnection& operator=(RawConnection&& other) noexcept;
  ~RawConnection();

  // Sends what fits within `timeout`; false when the peer has closed, or it did not all fit.
  bool Send(std::string_view bytes, Duration timeout = std::chrono::seconds(5));
  // Exactly `count` bytes.  Errors: kUnavailable  closed before    kDeadlineExceeded
  Result<std::string> Receive(size_t count, Duration timeout);
  // Waits until the peer closes, dropping what it sends; false when `timeout` passed first.
  bool WaitClosed(Duration timeout);

 private:
  explicit RawConnection(int fd) : fd_(fd) {}
  int fd_;
};

// The body of an answer to `GET path` over HTTP/1.0, with its status code in front: "200 ok".
Result<std::string> HttpGet(const std::string& address, std::string_view path);
// The same of `POST path` with a body.
Result<std::string> HttpPost(const std::string& address, std::string_view path,
                             std::string_view body);

}  // namespace ems::testing
