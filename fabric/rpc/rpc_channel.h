#pragma once
// The asking side of one data-plane connection: one request at a time, as a state machine that
// never blocks.
//
// Values go out straight from the caller's memory and come in straight to it; both are checksummed
// part by part while they are in the CPU's cache. Several channels are driven at once by RunAll, on
// the caller's own thread. Bound: 8 KiB of read-ahead, and a table of at most kBatchItemsMax items.
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/status.h"
#include "fabric/net/socket.h"
#include "fabric/rpc/answer_sink.h"
#include "proto/data_plane.h"

namespace ems::fabric {

// A request; everything it points to must live until the channel is done or closed. Re-used by its
// channel.
struct RpcRequest {
  wire::FrameHeader header;     // magic, lengths and checksums are set by the channel
  std::vector<std::byte> head;  // key, or item heads and keys, or key and range: all but values
  uint16_t key_bytes = 0;       // how much of `head` is the frame's key
  std::vector<std::span<const ConstBytes>>
      values;  // Put and MultiPut; each is followed by its trailer
};

// Threading: one thread at a time (holder).
class RpcChannel final {
 public:
  static constexpr uint64_t kStepBytes = 4 * kMiB;
  static constexpr Duration kNap = std::chrono::milliseconds(20);

  explicit RpcChannel(Fd fd);
  // Ends the connection for the server at once, even if another process (a forked child) holds the
  // descriptor.
  ~RpcChannel();
  RpcChannel(const RpcChannel&) = delete;
  RpcChannel& operator=(const RpcChannel&) = delete;

  // Connects and greets: the versions both sides speak are compared. Blocks up to `timeout`.
  // `cluster`: of whom the server has to be, as far as it says so; kNoCluster: of any.
  // Errors: those of fabric::Connect    kFailedPrecondition  no common version, or a server of
  // another cluster    kResourceExhausted  server full
  static Result<std::unique_ptr<RpcChannel>> Open(const Address& address, Duration timeout,
                                                  ClusterId cluster = kNoCluster);
  // Begins that: the channel is greeting, to be driven as if a request were under way; once done(),
  // Greeted says how it went. Blocks and takes one of several addresses as StartConnect does.
  static Result<std::unique_ptr<RpcChannel>> StartOpen(const Address& address, uint32_t attempt);
  // `cluster` and errors: those of Open
  Status Greeted(ClusterId cluster = kNoCluster) const;

  // RunAll drives what is under way no longer than until then, and its own deadline. Start ends it.
  void set_until(TimePoint until) { until_ = until; }
  TimePoint until() const { return until_; }

  // The request to fill in before Start; cleared.
  RpcRequest& NewRequest();
  // Begins it. `sink` must live until done() or the channel is destroyed.
  void Start(AnswerSink* sink);
  // Moves as many bytes as the socket takes or has, about kStepBytes at most: the caller
  // looks at the time in between. One that has sent the last of a request leaves the answer, which
  // cannot be there yet, to the next. Errors: the connection is of no more use.
  Status Advance();
  // It waits for the next bytes of an answer, however few come.
  bool awaits_bytes() const { return state_ > State::kSend && low_water_ == 1; }
  // The same as Advance where awaits_bytes(): sleeps until there are some, for kNap at most. It
  // takes a system call less than poll(2) and Advance.
  Status AwaitBytes();
  bool done() const { return state_ == State::kIdle; }
  // poll(2) events to wait for before the next Advance.
  short wants() const;
  int fd() const { return fd_.get(); }

  // Of the present request, or the last one: what logs of both sides name it by.
  uint32_t request_id() const { return request_.header.request_id; }
  // After done(): the answer's header, and its text when the status is not kOk.
  const wire::FrameHeader& answer() const { return answer_; }
  std::string_view text() const { return text_; }
  TimePoint started() const { return started_; }  // the present request, or the last one
  // After done(): from Start until the answer's header was here.
  Duration answer_took() const { return answered_ - started_; }
  // True once any byte of the present answer has come.
  bool answer_begun() const { return answer_begun_; }
  // How many bytes of the present request the kernel has taken, header included. The server has no
  // more of it than these.
  uint64_t sent_bytes() const { return sent_bytes_; }
  // After done(): whether the server has closed the connection, or has said what nobody asked for.
  // Cost: a system call.
  bool HungUp() const;
  const wire::HelloBody& hello() const { return hello_; }
  // The socket itself, for another protocol on the same connection; the channel is of no more use.
  // Only after done(), with no byte read ahead.
  Fd Release();

 private:
  enum class State : uint8_t { kIdle, kSend, kHeader, kTable, kText, kValues };

  void StartGreeting();
  void FillPending();
  Status Send();
  Status Receive();
  Status ReceiveSmall();
  Status ReadAhead();
  Status ReceiveValue();
  Status OnAnswerHeader();
  void NoteClock();
  Status OnSmallBody();
  Status BeginNextValue();
  Status EndAnswer();
  // Wakes poll(2) when so many bytes are there, or the stream ends.
  void SetLowWater(uint64_t bytes);
  // The same in the middle of values.
  void WaitForMore();
  Result<size_t> ReadSocket(std::span<iovec> into);
  // Whether a read that is not told otherwise sleeps. False: it cannot be had.
  bool LetReadsSleep(bool sleep);
  std::string BrokenText(std::string_view what) const;

  Fd fd_;
  const pid_t owner_;       // the process that may end it
  const bool reads_sleep_;  // when they may
  bool may_sleep_ = false;  // the next read
  State state_ = State::kIdle;
  TimePoint until_ = TimePoint::max();
  // 0: the greeting, which a full server refuses without reading it. Then from a random one on, so
  // that logs of many clients hardly have a number twice.
  uint32_t next_request_id_ = 0;
  RpcRequest request_;
  wire::HelloBody hello_;
  std::unique_ptr<AnswerSink> greeting_;
  AnswerSink* sink_ = nullptr;
  PieceHasher hasher_;

  // Sending: what is checksummed and not yet handed to the kernel, and where the rest starts.
  std::vector<iovec> pending_;
  size_t pending_begin_ = 0;
  uint64_t pending_bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  std::vector<uint64_t> trailers_;
  size_t value_ = 0;
  size_t part_ = 0;
  size_t part_offset_ = 0;
  bool value_started_ = false;

  // What the server's clock is ahead of this one, in ms, at least; none before the first answer.
  std::optional<uint32_t> clock_ahead_;
  TimePoint clock_told_{};

  // Receiving.
  wire::FrameHeader answer_;
  bool answer_begun_ = false;
  TimePoint started_{}, answered_{};
  bool drained_ = false;  // the last read found the socket empty
  uint64_t moved_ = 0;    // bytes, by this Advance
  std::string text_;
  uint64_t small_bytes_ = 0;  // length of the table or text being read
  std::vector<std::byte> table_;
  uint64_t body_left_ = 0;  // bytes of the body after table or text
  AnswerSink::Value incoming_;
  uint64_t incoming_left_ = 0;
  bool incoming_dropped_ = false;
  size_t into_part_ = 0;
  size_t into_offset_ = 0;
  std::vector<std::byte> scratch_;
  uint64_t low_water_ = 1;  // SO_RCVLOWAT as set
  std::array<std::byte, 8192> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  MutableBytes early_;  // what was read behind it, where the value is expected
};

// Drives the channels until each is done or has failed; `results[i]` says which. At the deadline,
// or at its until() if that is sooner, one fails with kDeadlineExceeded. `meanwhile`, if any, is
// called when the requests have been sent as far as their sockets took them, and again within
// kAgain until it says false: it has no more to do. Where a channel is null it may put one.
// `on_done(i)`, if any, is called whenever the i-th is done, and may start its next request, or
// take it away, or others: `channels[i]` is null then. Cost: no allocation up to 64 channels.
inline constexpr Duration kAgain = std::chrono::milliseconds(5);
void RunAll(std::span<RpcChannel* const> channels, Deadline deadline, std::span<Status> results,
            const std::function<bool()>& meanwhile = {},
            const std::function<void(size_t)>& on_done = {});

}  // namespace ems::fabric
