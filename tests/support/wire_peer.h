#pragma once
// A peer that speaks the data plane byte by byte: frames made by hand, sent in any pieces, cut
// anywhere.
//
// Bound: every wait has a timeout, 5 s unless told.
#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "fabric/net/socket.h"
#include "proto/data_plane.h"

namespace ems::testing {

inline constexpr Duration kPeerPatience = std::chrono::seconds(5);

// One end of a stream socket. Threading: one thread.
class WirePeer final {
 public:
  explicit WirePeer(fabric::Fd fd) : fd_(std::move(fd)) {}
  // "host:port" or "unix:/path".
  static WirePeer Connect(const std::string& address) {
    Result<fabric::Address> parsed = fabric::ParseAddress(address);
    EMS_CHECK(parsed.ok());
    Result<fabric::Fd> fd = fabric::Connect(*parsed, kPeerPatience);
    return WirePeer(fd.ok() ? std::move(*fd) : fabric::Fd());
  }
  bool connected() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }

  // False when the peer has closed or took not all in time.
  bool Send(std::string_view bytes, Duration timeout = kPeerPatience) {
    const Deadline deadline = Deadline::After(timeout);
    while (!bytes.empty()) {
      const ssize_t sent =
          ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (!Retry() || !Wait(POLLOUT, deadline)) {
        return false;
      }
    }
    return true;
  }
  // Exactly `count` bytes; nullopt when the peer closed or was too slow.
  std::optional<std::string> Receive(size_t count, Duration timeout = kPeerPatience) {
    const Deadline deadline = Deadline::After(timeout);
    std::string bytes(count, '\0');
    size_t have = 0;
    while (have < count) {
      const ssize_t got = ::recv(fd_.get(), bytes.data() + have, count - have, MSG_DONTWAIT);
      if (got == 0) return std::nullopt;
      if (got > 0) {
        have += static_cast<size_t>(got);
      } else if (!Retry() || !Wait(POLLIN, deadline)) {
        return std::nullopt;
      }
    }
    return bytes;
  }
  // What comes until the peer closes; nullopt when it does not within `timeout`.
  std::optional<std::string> ReceiveAll(Duration timeout = kPeerPatience) {
    const Deadline deadline = Deadline::After(timeout);
    std::string bytes;
    std::vector<char> buffer(64 * kKiB);
    while (true) {
      const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got > 0) {
        bytes.append(buffer.data(), static_cast<size_t>(got));
      } else if (got == 0 || !Retry()) {
        last_error_ = got == 0 ? 0 : errno;
        return bytes;
      } else if (!Wait(POLLIN, deadline)) {
        return std::nullopt;
      }
    }
  }
  bool WaitClosed(Duration timeout = kPeerPatience) { return ReceiveAll(timeout).has_value(); }
  // After either of them, how the connection ended: 0, or the socket's error.
  int last_error() const { return last_error_; }
  // No more bytes will be sent; receiving goes on.
  void HalfClose() { ::shutdown(fd_.get(), SHUT_WR); }
  // Ends the connection with RST.
  void Reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    fd_.Close();
  }
  void Close() { fd_.Close(); }

 private:
  static bool Retry() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
  bool Wait(short events, const Deadline& deadline) {
    pollfd poll{.fd = fd_.get(), .events = events, .revents = 0};
    return !deadline.Passed() && ::poll(&poll, 1, deadline.RemainingMs()) > 0;
  }
  fabric::Fd fd_;
  int last_error_ = 0;
};

// Sends the bytes one by one, 5 ms apart, for as long as the other side is there.
inline void Drip(WirePeer* peer, std::string_view bytes) {
  for (const char& byte : bytes) {
    if (peer->WaitClosed(std::chrono::milliseconds(5)) || !peer->Send({&byte, 1})) return;
  }
}

inline void AppendRaw(std::string* to, ConstBytes bytes) { to->append(AsText(bytes)); }

// How much of a request's body is no value: all of it, or the table of a MultiPut by its heads.
inline size_t CoveredOf(const wire::FrameHeader& header, std::string_view body) {
  if (header.op == wire::Op::kPut) return 0;
  if (header.op != wire::Op::kMultiPut) return body.size();
  size_t bytes = header.item_count * sizeof(wire::ItemHead);
  for (size_t at = 0; at < header.item_count * sizeof(wire::ItemHead); at += sizeof(wire::ItemHead))
    bytes += wire::ReadRaw<wire::ItemHead>(AsBytes(body).subspan(at)).key_bytes;
  return bytes;
}

// The header of that request: lengths and checksums are filled in.
inline wire::FrameHeader SealedHeader(wire::FrameHeader header, std::string_view key,
                                      std::string_view body) {
  header.key_bytes = static_cast<uint16_t>(key.size());
  header.body_bytes = body.size();
  std::string covered(key);
  covered += body.substr(0, CoveredOf(header, body));
  wire::SealRequest(AsBytes(covered), &header);
  return header;
}

// A whole request. Values and trailers in `body` are as they are.
inline std::string MakeFrame(const wire::FrameHeader& header, std::string_view key,
                             std::string_view body) {
  const wire::FrameHeader sealed = SealedHeader(header, key, body);
  std::string frame;
  AppendRaw(&frame, wire::RawBytes(sealed));
  return frame.append(key).append(body);
}

// The header of a frame that MakeFrame made.
inline wire::FrameHeader HeaderOf(std::string_view frame) {
  return wire::ReadRaw<wire::FrameHeader>(AsBytes(frame));
}

// The same frame with one bit flipped; bits are numbered from the first byte's lowest.
inline std::string WithFlippedBit(std::string_view frame, size_t bit) {
  std::string flipped(frame);
  flipped.at(bit / 8) = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
  return flipped;
}

inline constexpr NamespaceRef kFirstNamespace{NamespaceId(1), 1};

inline wire::FrameHeader MakeHeader(wire::Op op, uint32_t request_id,
                                    NamespaceRef ns = kFirstNamespace) {
  wire::FrameHeader header;
  header.op = op;
  header.request_id = request_id;
  header.namespace_id = ns.id.value();
  header.namespace_generation = ns.generation;
  header.deadline_ms = 2000;
  return header;
}

// Value and trailer, as the `item`th of the request with that sealed header.
inline std::string WithTrailer(const wire::FrameHeader& request, std::string_view value,
                               uint32_t item = 0) {
  std::string body(value);
  const uint64_t checksum = wire::FoldChecksum(Checksum(AsBytes(value)), request, item);
  AppendRaw(&body, wire::RawBytes(checksum));
  return body;
}

inline std::string PutFrame(uint32_t id, std::string_view key, std::string_view value,
                            uint16_t flags = 0, NamespaceRef ns = kFirstNamespace) {
  wire::FrameHeader header = MakeHeader(wire::Op::kPut, id, ns);
  header.flags = flags;
  const std::string room(value.size() + wire::kTrailerBytes, '\0');
  return MakeFrame(header, key, WithTrailer(SealedHeader(header, key, room), value));
}

inline std::string KeyFrame(wire::Op op, uint32_t id, std::string_view key,
                            NamespaceRef ns = kFirstNamespace) {
  return MakeFrame(MakeHeader(op, id, ns), key, {});
}

inline std::string RangeFrame(uint32_t id, std::string_view key, uint64_t offset, uint64_t length) {
  const wire::RangeBody range{.offset = offset, .length = length};
  return MakeFrame(MakeHeader(wire::Op::kGetRange, id), key, AsText(wire::RawBytes(range)));
}

// `values` is empty, or one for each key (MultiPut).
inline std::string MultiFrame(wire::Op op, uint32_t id, const std::vector<std::string>& keys,
                              const std::vector<std::string>& values = {}) {
  wire::FrameHeader header = MakeHeader(op, id);
  header.item_count = static_cast<uint16_t>(keys.size());
  std::string body;
  for (size_t i = 0; i < keys.size(); ++i) {
    wire::ItemHead head;
    head.key_bytes = static_cast<uint16_t>(keys[i].size());
    head.value_bytes = values.empty() ? 0 : values[i].size();
    AppendRaw(&body, wire::RawBytes(head));
  }
  for (const std::string& key : keys) body += key;
  const wire::FrameHeader request = SealedHeader(header, {}, body);
  for (uint32_t i = 0; i < values.size(); ++i) body += WithTrailer(request, values[i], i);
  return MakeFrame(header, {}, body);
}

struct WireReply {
  wire::FrameHeader header;
  std::string body;
  wire::ItemResult item(size_t i) const {
    return wire::ReadRaw<wire::ItemResult>(AsBytes(body).subspan(i * sizeof(wire::ItemResult)));
  }
};

// The next answer, its header and what of it is no value checked; nullopt when none came or it was
// damaged.
inline std::optional<WireReply> ReadReply(WirePeer* peer, Duration timeout = kPeerPatience) {
  std::optional<std::string> head = peer->Receive(wire::kHeaderBytes, timeout);
  if (!head) return std::nullopt;
  WireReply reply;
  const auto raw = wire::ReadRaw<wire::FrameHeader>(AsBytes(*head));
  if (!wire::ParseAnswer(AsBytes(*head), raw.op, raw.request_id, &reply.header).ok()) {
    return std::nullopt;
  }
  std::optional<std::string> body = peer->Receive(reply.header.body_bytes, timeout);
  if (!body) return std::nullopt;
  reply.body = std::move(*body);
  const bool values =
      reply.header.status == wire::WireStatus::kOk &&
      (reply.header.op == wire::Op::kMultiGet || reply.header.op == wire::Op::kMultiGetRange);
  const uint64_t results = reply.header.item_count * sizeof(wire::ItemResult);
  const std::string_view covered =
      std::string_view(reply.body).substr(0, values ? results : reply.body.size());
  if (!wire::AnswerMatches(reply.header, AsBytes(covered))) return std::nullopt;
  return reply;
}

}  // namespace ems::testing
