#pragma once
// A blocking connection to a cache that answers each request with one line, or one line and a
// value: what RESP and memcached's protocol have in common.
//
// The value goes straight into the caller's memory, line and value in one system call when they
// are there. Bound: one request at a time; each wait 30 s at most; a line has 512 bytes at most.
// What comes from the other side is not trusted: anything but the expected reply closes the
// connection, or is a whole line that the caller explains.
#include <sys/uio.h>

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::bench {

// Move-only. Threading: one thread.
class ReplySocket final {
 public:
  // `address`: "host:port" or "unix:/path". Errors: as fabric::Connect
  static Result<ReplySocket> Connect(const std::string& address);
  // Takes over a connected stream socket.
  explicit ReplySocket(fabric::Fd fd) : fd_(std::move(fd)) {}

  // Sends all parts, in order; changes them. Errors: kUnavailable
  Status Send(std::span<iovec> parts);

  // Reads a reply that should be the line `expected` (with its \r\n) and then, when `value` is not
  // empty, value and \r\n. Returns nothing when it was, else the line that came, without its \r\n;
  // the connection goes on when nothing followed that line, and is closed otherwise.
  // Errors: kUnavailable  the other end is gone, or too slow    kInternal  not a line, or bytes
  // that nobody asked for
  Result<std::string> Read(std::string_view expected, MutableBytes value);

 private:
  Result<size_t> ReadSome(std::span<iovec> parts);
  Status ReadRest(MutableBytes value, size_t value_got, size_t tail_got);
  Result<std::string> ReadOther(std::string line);
  Status Broken(std::string_view why);

  fabric::Fd fd_;
  std::array<std::byte, 2> tail_{};
};

}  // namespace ems::bench
