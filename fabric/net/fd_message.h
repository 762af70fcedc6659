#pragma once
// Messages of fixed length on a Unix socket, with descriptors beside them (SCM_RIGHTS).
//
// Bound: kFdsMax descriptors a message; more than were asked for are closed on arrival.
#include <array>
#include <span>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::fabric {

inline constexpr size_t kFdsMax = 4;

// Sends `message` and `fds` without blocking; nothing or all of it.
// Errors: kResourceExhausted  not now: as many messages, or descriptors of this user, are on their
// way as may be    kUnavailable  the peer is gone
Status SendMessageTo(int socket, ConstBytes message, std::span<const int> fds);

// Collects messages of `message.size()` bytes from a stream. Threading: one thread (holder).
class MessageReceiver final {
 public:
  enum class Outcome { kMessage, kNotYet, kEnded };
  // kMessage: `message` is filled and `fds` holds what came with it and this process had room for.
  // kEnded: end of stream, error,
  // or more descriptors than any message has. Does not block.
  Outcome Receive(int socket, MutableBytes message, std::vector<Fd>* fds);

 private:
  std::vector<std::byte> partial_;
  std::vector<Fd> partial_fds_;
};

// The user and process at the other end. Errors: kInvalidArgument  not a Unix socket
struct PeerCredentials {
  int64_t pid = 0;
  uint32_t uid = 0;
};
Result<PeerCredentials> CredentialsOf(int socket);

}  // namespace ems::fabric
