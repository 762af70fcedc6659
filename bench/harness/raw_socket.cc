#include "bench/harness/raw_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

namespace ems::bench {
namespace {

constexpr time_t kTimeoutSeconds = 30;

enum class RawOp : uint32_t { kPrepare = 1, kGet = 2, kPut = 3 };

// 64 bytes, like the data plane's header.
struct RawFrame {
  RawOp op = RawOp::kGet;
  uint32_t failed = 0;
  uint64_t index = 0;  // kPrepare: how many buffers
  uint64_t payload_bytes = 0;
  std::array<uint64_t, 5> padding{};
};
static_assert(sizeof(RawFrame) == 64);

Status SystemError(std::string_view what) {
  return Error(StatusCode::kInternal, "raw socket: {}: {}", what,
               std::generic_category().message(errno));
}

bool SendAll(int fd, ConstBytes bytes, int flags = 0) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | flags);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

bool ReceiveAll(int fd, MutableBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = ECONNRESET;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

ConstBytes FrameBytes(const RawFrame& frame) { return std::as_bytes(std::span(&frame, 1)); }
MutableBytes FrameRoom(RawFrame* frame) { return std::as_writable_bytes(std::span(frame, 1)); }

// The memory of the child, raw, because after fork only system calls are used.
struct ChildMemory {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  uint64_t buffers = 0;
  uint64_t payload_bytes = 0;

  bool Prepare(uint64_t new_buffers, uint64_t new_payload_bytes) {
    if (base != nullptr) munmap(base, bytes);
    base = nullptr;
    bytes = new_buffers * new_payload_bytes;
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    base = static_cast<std::byte*>(mapped);
    std::memset(base, 0x5a, bytes);
    buffers = new_buffers;
    payload_bytes = new_payload_bytes;
    return true;
  }
  MutableBytes Buffer(uint64_t index) const {
    return {base + index % buffers * payload_bytes, payload_bytes};
  }
};

// Answers one request; false ends the child.
bool AnswerOne(int fd, ChildMemory* memory) {
  RawFrame frame;
  if (!ReceiveAll(fd, FrameRoom(&frame))) return false;
  switch (frame.op) {
    case RawOp::kPrepare:
      frame.failed = memory->Prepare(frame.index, frame.payload_bytes) ? 0 : 1;
      return SendAll(fd, FrameBytes(frame));
    case RawOp::kGet:
      return memory->base != nullptr && SendAll(fd, memory->Buffer(frame.index));
    case RawOp::kPut:
      return memory->base != nullptr && ReceiveAll(fd, memory->Buffer(frame.index)) &&
             SendAll(fd, FrameBytes(frame));
  }
  return false;
}

[[noreturn]] void RunChild(int fd) {
  // Nothing of the parent stays open here, or the parent's death would go unseen.
  constexpr int kSocket = 3;
  if (dup2(fd, kSocket) != kSocket) _exit(1);
  close_range(kSocket + 1, ~0U, 0);
  const timeval for_ever{};
  setsockopt(kSocket, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof(for_ever));
  ChildMemory memory;
  while (AnswerOne(kSocket, &memory)) {
  }
  _exit(0);
}

struct Pair {
  int client = -1;
  int server = -1;
  void Close() const {
    if (client >= 0) close(client);
    if (server >= 0) close(server);
  }
};

bool ConnectTcp(int listener, Pair* pair) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* raw_address = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, raw_address, length) != 0 || listen(listener, 1) != 0) return false;
  if (getsockname(listener, raw_address, &length) != 0) return false;
  pair->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (pair->client < 0 || connect(pair->client, raw_address, length) != 0) return false;
  pair->server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  return pair->server >= 0;
}

Result<Pair> MakePair(RawTransport transport) {
  Pair pair;
  bool ok = false;
  if (transport == RawTransport::kUnix) {
    std::array<int, 2> fds{};
    ok = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0;
    if (ok) pair = {fds[0], fds[1]};
  } else {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ok = listener >= 0 && ConnectTcp(listener, &pair);
    if (listener >= 0) close(listener);
  }
  const int on = 1;
  const timeval timeout{kTimeoutSeconds, 0};
  for (const int fd : {pair.client, pair.server}) {
    if (!ok) break;
    if (transport == RawTransport::kTcp) {
      ok = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0;
    }
    ok = ok && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0 &&
         setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0;
  }
  if (ok) return pair;
  const Status error = SystemError("no connected pair");
  pair.Close();
  return error;
}

}  // namespace

Result<std::unique_ptr<RawSocket>> RawSocket::Start(RawTransport transport) {
  EMS_ASSIGN_OR_RETURN(const Pair pair, MakePair(transport));
  const pid_t child = fork();
  if (child == 0) RunChild(pair.server);
  if (child < 0) {
    const Status error = SystemError("fork");
    pair.Close();
    return error;
  }
  close(pair.server);
  return std::make_unique<RawSocket>(Passkey{}, pair.client, child);
}

RawSocket::~RawSocket() {
  close(fd_);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Status RawSocket::Prepare(uint64_t payload_bytes, uint64_t buffers) {
  if (payload_bytes == 0 || buffers == 0) {
    return Error(StatusCode::kInvalidArgument, "raw socket: {} buffers of {} bytes", buffers,
                 payload_bytes);
  }
  RawFrame frame{.op = RawOp::kPrepare, .index = buffers, .payload_bytes = payload_bytes};
  if (!SendAll(fd_, FrameBytes(frame)) || !ReceiveAll(fd_, FrameRoom(&frame))) {
    return SystemError("prepare");
  }
  if (frame.failed == 0) return OkStatus();
  return Error(StatusCode::kResourceExhausted, "raw socket: no memory for {} buffers of {} bytes",
               buffers, payload_bytes);
}

Status RawSocket::Get(uint64_t index, MutableBytes into) {
  const RawFrame frame{.op = RawOp::kGet, .index = index, .payload_bytes = into.size()};
  if (SendAll(fd_, FrameBytes(frame)) && ReceiveAll(fd_, into)) return OkStatus();
  return SystemError("get");
}

Status RawSocket::Put(uint64_t index, ConstBytes value) {
  RawFrame frame{.op = RawOp::kPut, .index = index, .payload_bytes = value.size()};
  if (SendAll(fd_, FrameBytes(frame), MSG_MORE) && SendAll(fd_, value) &&
      ReceiveAll(fd_, FrameRoom(&frame))) {
    return OkStatus();
  }
  return SystemError("put");
}

}  // namespace ems::bench
