#pragma once
// A baseline for Get and Put: the speed of this machine's sockets when bytes move and nothing else
// is done.
//
// A child process answers on one connected socket (TCP loopback with TCP_NODELAY, or Unix): a "get"
// is 64 bytes one way and N bytes back, a "put" is 64 + N bytes one way and 64 bytes back. Blocking
// calls, no checksum, no parsing. The child sends from and receives into as many distinct buffers
// as it is told, so that its caches see what a server's caches see. Bound: one request at a time;
// each waits 30 s at most; the child ends when the socket closes.
#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::bench {

enum class RawTransport { kTcp, kUnix };

// Sole owner of the child process; ends and reaps it on destruction. Threading: one thread.
class RawSocket final {
  struct Passkey {};  // only Start constructs

 public:
  RawSocket(Passkey, int fd, pid_t child) : fd_(fd), child_(child) {}
  // Forks: call it before this process has threads.
  // Errors: kInternal  no socket, no process
  static Result<std::unique_ptr<RawSocket>> Start(RawTransport transport);
  ~RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  // Makes the child hold `buffers` buffers of `payload_bytes`, all touched. Needed before Get and
  // Put. Errors: kResourceExhausted  the child has no such memory    kInternal  the child is gone
  Status Prepare(uint64_t payload_bytes, uint64_t buffers);
  // One "get" of the child's buffer `index`; fills `into` (payload_bytes). Errors: kInternal
  Status Get(uint64_t index, MutableBytes into);
  // One "put" into the child's buffer `index`. Errors: kInternal
  Status Put(uint64_t index, ConstBytes value);

  pid_t child() const { return child_; }

 private:
  const int fd_;
  const pid_t child_;
};

}  // namespace ems::bench
