#pragma once
// One HTTP/1.1 request on a connection of its own, and its answer as it comes: what a client of
// the serving API needs, and no more.
//
// Invariant: a body is reported as ended only when its end came; one that was cut is an error.
// Bound: every wait ends with the deadline; a head has 16 KiB at most. What comes from the other
// side is not trusted.
#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/socket.h"

namespace ems::bench {

struct HttpAsk {
  std::string address;  // host:port
  std::string_view method = "GET";
  std::string_view path = "/";
  std::string_view body = {};  // JSON; sent with POST
};

// Move-only. Threading: one thread.
class HttpExchange final {
 public:
  // Connects, sends, and waits for the head of the answer.
  // Errors: kUnavailable  refused, or gone    kDeadlineExceeded    kInternal  not HTTP
  // kInvalidArgument  not an address
  static Result<HttpExchange> Begin(const HttpAsk& ask, Deadline deadline);

  int status() const { return status_; }
  // The next bytes of the body, as soon as there are any; empty: its end.
  // Errors: as Begin; kUnavailable  the body was cut
  Result<std::string> Read();
  // The rest of the body. Errors: as Read    kResourceExhausted  longer than `bytes_max`
  Result<std::string> ReadAll(size_t bytes_max);

 private:
  enum class Framing { kLength, kChunked, kUntilClose };

  HttpExchange(fabric::Fd fd, Deadline deadline) : fd_(std::move(fd)), deadline_(deadline) {}
  Status Send(std::string_view text);
  Status ReadHead();
  Status ReadFraming(std::string_view head);
  // Waits for more bytes and adds them to buffer_. False: the other end has closed.
  Result<bool> Fill();
  // Brings a whole line to the beginning of buffer_ and takes it out, without its end.
  Result<std::string> TakeLine();
  // What of buffer_ belongs to the body's current piece.
  std::string TakePiece();
  // Reads the size of the next chunk into left_, and the end of the body after the last.
  Status NextChunk();

  fabric::Fd fd_;
  Deadline deadline_;
  int status_ = 0;
  Framing framing_ = Framing::kUntilClose;
  uint64_t left_ = 0;   // of the body, or of the current chunk
  bool begun_ = false;  // a chunk has been read
  bool ended_ = false;
  std::string buffer_;  // came, and was not handed out yet
};

}  // namespace ems::bench
