#include "common/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

namespace ems {

Status NotifyService(const std::string& socket, std::string_view state) {
  if (socket.empty()) return OkStatus();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((socket[0] != '/' && socket[0] != '@') || socket.size() >= sizeof(address.sun_path)) {
    return Error(StatusCode::kInvalidArgument, "notify socket {}: neither /path nor @name", socket);
  }
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());

  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const ssize_t sent = ::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), length);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (sent == static_cast<ssize_t>(state.size())) return OkStatus();
  return Error(StatusCode::kUnavailable, "notify socket {}: {}", socket,
               std::generic_category().message(error));
}

}  // namespace ems
