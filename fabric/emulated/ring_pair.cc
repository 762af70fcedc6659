#include "fabric/emulated/ring_pair.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace ems::fabric {

Result<SocketPair> MakeSocketPair() {
  std::array<int, 2> fds{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0)
    return Error(StatusCode::kInternal, "a pair of sockets: {}", ErrnoText(errno));
  return SocketPair{Fd(fds[0]), Fd(fds[1])};
}

Result<RingPair> MakeRingPair(const RingOptions& options) {
  EMS_ASSIGN_OR_RETURN(SocketPair sockets, MakeSocketPair());
  RingPair pair;
  EMS_ASSIGN_OR_RETURN(pair.receiver, RingReceiver::Offer(std::move(sockets.one), options));
  EMS_ASSIGN_OR_RETURN(pair.sender, RingSender::Accept(std::move(sockets.other),
                                                       std::chrono::seconds(5), options.spin));
  return pair;
}

}  // namespace ems::fabric
