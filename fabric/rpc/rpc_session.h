#pragma once
// The interface between frames on a socket and the service that answers them. A service makes one
// Session for each connection.
//
// The transport reads headers, keys and tables, receives values straight into the memory a session
// names, checksums them on the way, and sends answers straight from the memory a session lends.
// What does not match a request's checksum never comes to a session. Checksums of values that a
// session is given and gives are the values' own; the transport folds them with the request.
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "fabric/net/socket.h"
#include "proto/data_plane.h"

namespace ems::fabric {

// The next step of a request: answer with `status`, or ask again after `wait` (a view or room is
// about to come), or as soon as the session's waker is called. The transport stops asking when the
// request's deadline or `patience` have passed, whichever is first, and answers `status`.
struct Outcome {
  wire::WireStatus status = wire::WireStatus::kOk;
  Duration wait{0};
  Duration patience = std::chrono::milliseconds(200);
  // There is more to do: ask again, however long it takes, once others have had their turn.
  bool again = false;
};

// An answer in the making; re-used by the connection, so that a steady state allocates nothing.
struct Answer {
  uint64_t checksum = 0;            // of Get and GetRange: the value's; of Exists: object_bytes
  uint32_t whole_bytes = 0;         // header.whole_bytes
  uint16_t flags = 0;               // header.flags
  std::vector<std::byte> body;      // small things: results, text
  std::vector<ConstBytes> payload;  // sent after `body`; borrowed until Session::Sent()
  void Clear() {
    checksum = 0;
    whole_bytes = 0;
    flags = 0;
    body.clear();
    payload.clear();
  }
};

// One value about to arrive.
struct PutRequest {
  const wire::FrameHeader* header;
  std::string_view key;
  SlotId slot;
  uint64_t value_bytes;
  uint32_t index = 0;    // which Put of its request it is
  uint32_t idle_ms = 0;  // as its ItemHead's
};

struct PutTarget {
  MutableBytes value;  // where the value goes, value_bytes of it; ignored when `discard`
  std::span<uint64_t> piece_sums;  // receives the checksums of the pieces; may be empty
  bool discard = false;            // checksum the value, keep nothing
};

// The value of a staged Put, where its sender has made it. The sender may go on writing to it: only
// what was copied counts.
struct StagedBytes {
  ConstBytes bytes;
  // How many of them are there by now; null: all. Written by the sender, so it may say anything.
  const std::atomic<uint64_t>* progress = nullptr;
  std::shared_ptr<const void> keep;  // keeps them mapped
};

// What became of a request whose answer is with the kernel.
struct Served {
  Duration took{};     // from its header to now
  Duration waited{};   // of it, as outcomes asked for: for room, a view, the disk
  Duration sending{};  // of it, until the kernel had the answer
  bool local = false;  // over a Unix socket
  wire::WireStatus status = wire::WireStatus::kOk;  // of the answer
  uint64_t answer_bytes = 0;                        // of its body
  std::string_view key{};                           // empty: it has none, or several
  int socket = -1;                                  // of the connection: PeerText
};

// Threading: one thread (the connection's "ems-io"). No call may block.
class Session {
 public:
  virtual ~Session() = default;

  // Any op but Put and MultiPut. `body` is the whole body after the key: a range, a checked item
  // table.
  virtual Outcome Handle(const wire::FrameHeader& request, std::string_view key, ConstBytes body,
                         Answer* answer) = 0;

  // A value is coming: names its target. With a status other than kOk the value is skipped and that
  // is the answer. After kOk exactly one of EndPut and AbortPut follows before the next BeginPut.
  virtual Outcome BeginPut(const PutRequest& put, PutTarget* target) = 0;
  // The value is in place; `checksum` is that of the bytes received, `expected` what the sender
  // says.
  virtual wire::WireStatus EndPut(uint64_t checksum, uint64_t expected) = 0;
  // The connection broke in the middle of it.
  virtual void AbortPut() = 0;
  // All values of the request are in place; `statuses`, by index, are what will be answered. May
  // wait until they are what they were to be (durable, say), and replaces those that are not: what
  // they are after a call counts, however long it would have waited.
  virtual Outcome AwaitPuts(std::span<wire::WireStatus> statuses) {
    (void)statuses;
    return {};
  }
  // Before anything else: what to call, on any thread and at any time, even when the connection has
  // gone, so that a request which waits is asked about at once.
  virtual void SetWaker(std::function<void()> waker) { (void)waker; }

  // The value of a PutStaged or of an item of MultiPutStaged. Errors: kInvalidArgument  nothing of
  // this sender lies there    kUnimplemented  no memory is shared here
  virtual Result<StagedBytes> Staged(const wire::StagedValue& value) {
    return Error(StatusCode::kUnimplemented, "no registered memory here ({} bytes)", value.bytes);
  }
  // An Attach has been answered with kOk: the connection speaks shm::SessionMessage from now on.
  // The session is destroyed after this.
  virtual void TakeOver(Fd socket, NamespaceRef ns) { (void)socket, (void)ns; }

  // Text for an answer that is not kOk; empty for none. Valid until the next call.
  virtual std::string_view ErrorText() = 0;
  // With kRetryLater or kNotDurable, or items of it: how long the client should wait.
  virtual uint32_t retry_ms() = 0;
  // The version for the header of the next answer.
  virtual ViewVersion view_version() = 0;
  // The last answer has been handed to the kernel, or the connection broke: pins may go.
  virtual void Sent() = 0;
  // After Sent, where the connection goes on.
  virtual void OnServed(const wire::FrameHeader& request, const Served& served) {
    (void)request, (void)served;
  }
};

class SessionFactory {
 public:
  virtual ~SessionFactory() = default;
  // Called on an "ems-io" thread for each connection. The session must not outlive the factory.
  virtual std::unique_ptr<Session> NewSession() = 0;
};

}  // namespace ems::fabric
