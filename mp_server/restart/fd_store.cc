#include "mp_server/restart/fd_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "common/logging.h"

namespace ems::server {
namespace {

constexpr std::string_view kName = "ems-restart";
constexpr int kFirstFd = 3;           // SD_LISTEN_FDS_START
constexpr size_t kFdsAMessage = 128;  // the kernel takes 253
constexpr int kPatienceMs =
    static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(kStorePatience).count());

Result<fabric::Fd> ConnectNotify(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.empty() || (socket[0] != '/' && socket[0] != '@') ||
      socket.size() >= sizeof(address.sun_path))
    return Error(StatusCode::kUnavailable, "no notify socket \"{}\"", socket);
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';
  fabric::Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return Error(StatusCode::kUnavailable, "notify socket {}: {}", socket,
                 fabric::ErrnoText(errno));
  return fd;
}

// One datagram; waits while the manager's queue is full.
Status SendNotify(int socket, std::string_view text, std::span<const int> fds) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kFdsAMessage * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  const Deadline deadline = Deadline::After(kStorePatience);
  while (true) {
    if (::sendmsg(socket, &header, MSG_NOSIGNAL) >= 0) return OkStatus();
    const bool full = errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS;
    if ((!full && errno != EINTR) || deadline.Remaining() <= Duration::zero())
      return Error(StatusCode::kUnavailable, "notify socket: {}", fabric::ErrnoText(errno));
    pollfd room{socket, POLLOUT, 0};
    (void)::poll(&room, 1, 10);
  }
}

// Waits until the manager has worked through all that was sent before (sd_notify_barrier(3)).
Status Barrier(int socket) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error(StatusCode::kUnavailable, "a pipe: {}", fabric::ErrnoText(errno));
  const fabric::Fd mine(ends[0]);
  {
    const fabric::Fd theirs(ends[1]);
    const int fd = theirs.get();
    EMS_RETURN_IF_ERROR(SendNotify(socket, "BARRIER=1", {&fd, 1}));
  }
  pollfd hung_up{mine.get(), 0, 0};
  if (::poll(&hung_up, 1, kPatienceMs) > 0) return OkStatus();
  return Error(StatusCode::kUnavailable, "the service manager does not say that it has them");
}

class Systemd final : public FdStore {
 public:
  explicit Systemd(const SystemdWords& words)
      : socket_(words.notify_socket), max_(words.store_max) {
    if (words.listen_pid != std::to_string(::getpid())) return;
    size_t at = 0;
    for (uint32_t i = 0; i < std::min<uint32_t>(words.listen_fds, kFdsHeldMax); ++i) {
      const size_t end = std::min(words.listen_names.find(':', at), words.listen_names.size());
      const bool ours = at < end && words.listen_names.compare(at, end - at, kName) == 0;
      at = std::min(end + 1, words.listen_names.size());
      if (!ours) continue;
      const int fd = kFirstFd + static_cast<int>(i);
      (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
      given_.emplace_back(fd);
    }
  }

  std::vector<fabric::Fd> Take() override {
    // In any case: what the manager keeps is memory that nobody would get back.
    if (const Status removed = Remove(); !removed.ok()) {
      EMS_LOG(kWarn, "mp_server", "the service manager keeps descriptors: {}", Message(removed));
      given_.clear();
      return {};
    }
    return std::exchange(given_, {});
  }

  Status Put(std::span<const int> fds) override {
    if (fds.size() > max_)
      return Error(StatusCode::kUnavailable, "{} descriptors, FileDescriptorStoreMax={}",
                   fds.size(), max_);
    EMS_ASSIGN_OR_RETURN(const fabric::Fd socket, ConnectNotify(socket_));
    const std::string text = fmt::format("FDSTORE=1\nFDNAME={}", kName);
    for (size_t at = 0; at < fds.size(); at += kFdsAMessage)
      EMS_RETURN_IF_ERROR(
          SendNotify(socket.get(), text, fds.subspan(at, std::min(kFdsAMessage, fds.size() - at))));
    return Barrier(socket.get());
  }

  std::string_view name() const override { return "systemd"; }

 private:
  Status Remove() const {
    EMS_ASSIGN_OR_RETURN(const fabric::Fd socket, ConnectNotify(socket_));
    return SendNotify(socket.get(), fmt::format("FDSTOREREMOVE=1\nFDNAME={}", kName), {});
  }

  const std::string socket_;
  const uint32_t max_;
  std::vector<fabric::Fd> given_;
};

class Holder final : public FdStore {
 public:
  explicit Holder(std::string path) : path_(std::move(path)) {}
  std::vector<fabric::Fd> Take() override {
    Result<std::vector<fabric::Fd>> held = TakeHeld(path_, Deadline::After(kStorePatience));
    if (held.ok()) return *std::move(held);
    EMS_LOG(kWarn, "mp_server", "holder {}: {}", path_, Message(held.status()));
    return {};
  }
  Status Put(std::span<const int> fds) override {
    return Prefixed(PutHeld(path_, fds, Deadline::After(kStorePatience)), "holder " + path_);
  }
  std::string_view name() const override { return "holder"; }

 private:
  const std::string path_;
};

}  // namespace

std::unique_ptr<FdStore> SystemdStore(const SystemdWords& words) {
  if (words.notify_socket.empty() || words.store_max == 0) return nullptr;
  return std::make_unique<Systemd>(words);
}

std::unique_ptr<FdStore> HolderStore(const std::string& path) {
  if (path.empty() || ::access(path.c_str(), F_OK) != 0) return nullptr;
  const auto socket = ConnectHolder(path, Deadline::After(kStorePatience));
  if (socket.ok()) return std::make_unique<Holder>(path);
  if (socket.status().code() == StatusCode::kPermissionDenied)
    EMS_LOG(kWarn, "mp_server", "no restart in place: holder {}: {}", path,
            Message(socket.status()));
  return nullptr;
}

}  // namespace ems::server
