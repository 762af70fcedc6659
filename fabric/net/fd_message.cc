#include "fabric/net/fd_message.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "common/check.h"

namespace ems::fabric {
namespace {

// Room for the control part of a message with kFdsMax descriptors.
struct ControlRoom {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kFdsMax * sizeof(int))> bytes{};
};

// Takes over every descriptor of a received control part.
void TakeFds(msghdr* header, std::vector<Fd>* fds) {
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

}  // namespace

Status SendMessageTo(int socket, ConstBytes message, std::span<const int> fds) {
  EMS_CHECK(fds.size() <= kFdsMax, "{} descriptors", fds.size());
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  ControlRoom control;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(message.size())) return OkStatus();
  if (sent >= 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ||
      errno == ETOOMANYREFS)
    return Error(StatusCode::kResourceExhausted, "the peer does not read its messages");
  return Error(StatusCode::kUnavailable, "sending a message: {}", ErrnoText(errno));
}

MessageReceiver::Outcome MessageReceiver::Receive(int socket, MutableBytes message,
                                                  std::vector<Fd>* fds) {
  EMS_CHECK(partial_.size() <= message.size(), "{} bytes of a message of {}", partial_.size(),
            message.size());
  while (partial_.size() < message.size()) {
    std::byte* const at = message.data();
    iovec part{at, message.size() - partial_.size()};
    ControlRoom control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    const ssize_t got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Outcome::kNotYet;
    if (got <= 0) return Outcome::kEnded;
    TakeFds(&header, &partial_fds_);
    if (partial_fds_.size() > kFdsMax) return Outcome::kEnded;
    partial_.insert(partial_.end(), at, at + got);
  }
  std::copy(partial_.begin(), partial_.end(), message.begin());
  partial_.clear();
  fds->clear();
  std::move(partial_fds_.begin(), partial_fds_.end(), std::back_inserter(*fds));
  partial_fds_.clear();
  return Outcome::kMessage;
}

Result<PeerCredentials> CredentialsOf(int socket) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX)
    return Error(StatusCode::kInvalidArgument, "not a Unix socket");
  ucred peer{};
  length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return Error(StatusCode::kInvalidArgument, "peer credentials: {}", ErrnoText(errno));
  return PeerCredentials{peer.pid, peer.uid};
}

}  // namespace ems::fabric
