#pragma once
// The server's end of sessions, as a test wants it: shares a PoolImage over a Unix socket, one
// session after the other.
//
// Bound: every wait has a timeout.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "fabric/net/fd_message.h"
#include "fabric/shm/shm_segment.h"
#include "tests/support/pool_image.h"
#include "tests/support/scripted_server.h"

namespace ems::testing {

// Threading: the peer runs on a thread of its own, "shm-peer"; the hooks are set before it serves.
class ShmPeer final {
 public:
  // What goes out may be spoiled first; descriptors are borrowed.
  using Spoil = std::function<void(shm::SessionMessage*, std::vector<int>* fds)>;

  explicit ShmPeer(PoolImage* image) : image_(image), page_(NewPage()) {
    char folder[] = "/tmp/ems-peer-XXXXXX";
    EMS_CHECK(::mkdtemp(folder) != nullptr);
    folder_ = folder;
    listener_ = fabric::Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    const std::string name = path();
    std::copy(name.begin(), name.end(), local.sun_path);
    EMS_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&local), sizeof(local)) == 0);
    EMS_CHECK(::listen(listener_.get(), 16) == 0);
  }
  ~ShmPeer() {
    stopping_.store(true);
    thread_.Join();
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  void Start() {
    thread_ = Thread("shm-peer", [this] { Run(); });
  }

  std::string path() const { return folder_ + "/socket"; }
  fabric::Address address() const { return {.host = {}, .port = 0, .unix_path = path()}; }
  shm::SessionPage& page() { return *reinterpret_cast<shm::SessionPage*>(page_.bytes().data()); }
  // Says something that was not asked for.
  void Tell(shm::SessionOp op, uint64_t id) {
    shm::SessionMessage message;
    message.op = op;
    message.id = id;
    EMS_CHECK(fabric::SendMessageTo(socket_.load(), wire::RawBytes(message), {}).ok());
  }
  void HangUp() { hang_up_.store(true); }

  wire::WireStatus attach_status = wire::WireStatus::kOk;
  uint64_t pin_bytes_max = 64 * kMiB;
  std::atomic<uint64_t> boot_id{1};
  Spoil spoil_welcome, spoil_answer;
  std::atomic<int> connections{0}, attached{0}, ended{0}, segments_asked{0}, segments_dropped{0},
      tables_asked{0};
  std::atomic<uint64_t> registered_bytes{0};
  std::atomic<wire::WireStatus> register_status{wire::WireStatus::kOk};

 private:
  static fabric::ShmSegment NewPage() {
    Result<fabric::ShmSegment> made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
    EMS_CHECK(made.ok(), "{}", ToString(made.status()));
    new (made->bytes().data()) shm::SessionPage;
    return *std::move(made);
  }
  void Run() {
    while (!stopping_.load()) {
      pollfd entry{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 5) <= 0) continue;
      WirePeer peer(fabric::Fd(::accept(listener_.get(), nullptr, nullptr)));
      connections++;
      if (!ServeHello(&peer, {.boot_id = boot_id, .value_bytes_max = kGiB})) continue;
      const std::optional<WireRequest> request = ReadRequest(&peer);
      if (!request || request->header.op != wire::Op::kAttach) continue;
      const bool refuse = attach_status != wire::WireStatus::kOk;
      // The Welcome follows at once: nobody may swallow it together with the answer.
      if (!peer.Send(AnswerTo(request->header, refuse ? "not here" : "", attach_status))) continue;
      if (!refuse) Serve(peer.fd());
      ended++;
    }
  }
  void Serve(int socket) {
    shm::SessionMessage welcome;
    welcome.id = 11;
    welcome.secret = 22;
    welcome.bytes = pin_bytes_max;
    Result<fabric::Fd> control = image_->control_file().OpenReadOnly();
    EMS_CHECK(control.ok());
    std::vector<int> fds{control->get(), page_.fd()};
    if (spoil_welcome) spoil_welcome(&welcome, &fds);
    // Before the client can know of it.
    socket_.store(socket);
    hang_up_.store(false);
    attached++;
    if (!fabric::SendMessageTo(socket, wire::RawBytes(welcome), fds).ok()) return;
    fabric::MessageReceiver receiver;
    while (!stopping_.load() && !hang_up_.load()) {
      pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 2) <= 0) continue;
      shm::SessionMessage message;
      std::vector<fabric::Fd> received;
      const auto outcome =
          receiver.Receive(socket, std::as_writable_bytes(std::span(&message, 1)), &received);
      if (outcome == fabric::MessageReceiver::Outcome::kEnded) return;
      if (outcome == fabric::MessageReceiver::Outcome::kMessage) Answer(socket, message);
    }
  }
  void Answer(int socket, shm::SessionMessage message) {
    if (message.op == shm::SessionOp::kSegmentDropped) {
      segments_dropped++;
      return;
    }
    const fabric::ShmSegment* file = nullptr;
    if (message.op == shm::SessionOp::kSegment) {
      segments_asked++;
      if (message.id == PoolImage::kSegmentId) file = &image_->segment_file();
    } else if (message.op == shm::SessionOp::kTable) {
      tables_asked++;
      if (message.id == PoolImage::kTableId) file = &image_->table_file();
    } else {
      registered_bytes = message.bytes;
      message.status = static_cast<uint32_t>(register_status.load());
    }
    std::vector<int> fds;
    fabric::Fd given;
    if (file != nullptr) {
      given = *file->OpenReadOnly();
      fds.push_back(given.get());
      message.bytes = file->size_bytes();
    } else if (message.op != shm::SessionOp::kRegister) {
      message.status = static_cast<uint32_t>(wire::WireStatus::kMiss);
    }
    if (spoil_answer) spoil_answer(&message, &fds);
    (void)fabric::SendMessageTo(socket, wire::RawBytes(message), fds);
  }

  PoolImage* image_;
  fabric::ShmSegment page_;
  std::string folder_;
  fabric::Fd listener_;
  std::atomic<int> socket_{-1};
  std::atomic<bool> stopping_{false}, hang_up_{false};
  Thread thread_;
};

}  // namespace ems::testing
