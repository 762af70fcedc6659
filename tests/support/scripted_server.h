#pragma once
// A server that does exactly what a test says, byte by byte: one connection after the other, each
// handed to the script with its number.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/thread_pool.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {

struct WireRequest {
  wire::FrameHeader header;
  std::string key;
  std::string body;
};

// The next request; nullopt when the peer closed or was silent for too long.
inline std::optional<WireRequest> ReadRequest(WirePeer* peer, Duration timeout = kPeerPatience) {
  std::optional<std::string> head = peer->Receive(wire::kHeaderBytes, timeout);
  if (!head) return std::nullopt;
  WireRequest request;
  if (!wire::ParseRequest(AsBytes(*head), wire::kValueBytesLimit, &request.header).ok()) {
    return std::nullopt;
  }
  std::optional<std::string> key = peer->Receive(request.header.key_bytes, timeout);
  std::optional<std::string> body = peer->Receive(request.header.body_bytes, timeout);
  if (!key || !body) return std::nullopt;
  request.key = std::move(*key);
  request.body = std::move(*body);
  return request;
}

// An answer to `request`. `body` of a Multi request begins with its results, with the values' own
// checksums.
inline std::string AnswerTo(const wire::FrameHeader& request, std::string_view body,
                            wire::WireStatus status = wire::WireStatus::kOk) {
  wire::FrameHeader header;
  header.op = request.op;
  header.request_id = request.request_id;
  header.status = status;
  header.item_count = request.item_count;
  header.body_bytes = body.size();
  header.checksum = Checksum(AsBytes(body));  // of a Get or GetRange
  std::string bytes(body);
  const bool results = status == wire::WireStatus::kOk && wire::IsMulti(request.op);
  const MutableBytes covered =
      std::as_writable_bytes(std::span(bytes))
          .first(results ? std::min(bytes.size(), request.item_count * sizeof(wire::ItemResult))
                         : bytes.size());
  if (results) wire::FoldResults(request, covered);
  wire::SealAnswer(request, covered, &header);
  std::string frame;
  AppendRaw(&frame, wire::RawBytes(header));
  return frame + bytes;
}

// Answers the Hello that opens each connection.
inline bool ServeHello(WirePeer* peer,
                       const wire::HelloBody& hello = {.boot_id = 1, .value_bytes_max = kGiB}) {
  std::optional<WireRequest> request = ReadRequest(peer);
  return request && request->header.op == wire::Op::kHello &&
         peer->Send(AnswerTo(request->header, AsText(wire::RawBytes(hello))));
}

// Threading: the script runs on a thread of its own, "script".
class ScriptedServer final {
 public:
  using Script = std::function<void(WirePeer*, int connection)>;
  explicit ScriptedServer(Script script) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(local);
    auto* raw = reinterpret_cast<sockaddr*>(&local);
    EMS_CHECK(::bind(listener_.get(), raw, length) == 0 && ::listen(listener_.get(), 16) == 0);
    EMS_CHECK(::getsockname(listener_.get(), raw, &length) == 0);
    port_ = ntohs(local.sin_port);
    thread_ = Thread("script", [this, script = std::move(script)] { Run(script); });
  }
  ~ScriptedServer() { stopping_.store(true); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  fabric::Address socket_address() const {
    return {.host = "127.0.0.1", .port = port_, .unix_path = ""};
  }
  int connections() const { return connections_.load(); }

 private:
  void Run(const Script& script) {
    while (!stopping_.load()) {
      pollfd poll{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&poll, 1, 10) <= 0) continue;
      WirePeer peer(fabric::Fd(::accept(listener_.get(), nullptr, nullptr)));
      script(&peer, connections_.fetch_add(1));
    }
  }
  fabric::Fd listener_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  Thread thread_;
};

}  // namespace ems::testing
