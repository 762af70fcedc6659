#pragma once
// Sends messages to one receiver, in this process or another, through a ring of entries in memory
// that both share (ring_layout.h): what XCCL's send does between two NPUs (XDS §3.1).
//
// EMULATED: shared memory of one host stands for the UB fabric's; a path (emulated_link.h) gives it
// the fabric's pace. A message is cut into chunks of an entry each; a chunk is copied into a free
// entry, then its field is stored, its tail last; the receiver's ack frees the entry. Messages
// carry an event id, which says to the receiver which of its receives they are for.
//
// Bound: `entries` chunks on their way. Until the receiver has taken a message's first chunk, two
// of that message at most: messages that nobody waits for yet leave the ring to the others.
// Messages begun and those whose end the receiver has not heard of are kEndsMax together; others
// wait.
#include <atomic>
#include <cstdint>
#include <memory>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "fabric/emulated/emulated_link.h"
#include "fabric/emulated/ring_layout.h"
#include "fabric/net/socket.h"

namespace ems::fabric {

// The receiver answered. That all entries are taken says that it is alive and does not receive: it
// has no room (back-pressure). A link that is dead does not answer at all.
struct RingProbeAnswer {
  Duration round_trip{0};
  uint32_t entries_taken = 0;
  uint32_t entries = 0;
  bool saturated() const { return entries_taken == entries; }
};

// Options of a message.
struct RingSendOptions {
  const EmulatedPath* path = nullptr;  // each chunk arrives when it says
  // A thread that ends the call early sets it and calls Wake: a message that the receiver abandoned
  // before any of it came would wait for its time.
  const std::atomic<bool>* stop = nullptr;
  // A receiver that has taken nothing of it for so long, though it could, does not receive any
  // more, whatever it answers to probes. Until it takes something again, calls with a limit fail at
  // once.
  Duration stall_limit = Duration::max();
};

// Threading: thread-safe; messages of several threads share the entries. Goes after all calls have
// returned.
class RingSender final {
 public:
  // Of calls that nobody answers: looks at the ring for so long before it sleeps.
  static constexpr Duration kSpin = std::chrono::microseconds(50);
  static constexpr size_t kEndsMax = size_t{2} * kRingEntriesMax;

  // Takes what the receiver offers over `socket`, a connected Unix stream (RingReceiver::Offer).
  // Blocks up to `timeout`. Errors: kDeadlineExceeded  no offer    kUnavailable  the peer is gone
  //   kDataLoss  an offer that makes no sense    kResourceExhausted  no room to map the ring
  static Result<std::unique_ptr<RingSender>> Accept(Fd socket, Duration timeout,
                                                    Duration spin = kSpin);
  ~RingSender();
  RingSender(const RingSender&) = delete;
  RingSender& operator=(const RingSender&) = delete;

  // Sends `message` (it may be empty) and waits until the receiver has taken all of it. An event id
  // names one message at a time; it may be used again once this call has returned.
  // Errors: kDeadlineExceeded  nobody received it in time, or the receiver gave it up
  //   kUnavailable  the peer is gone, or takes nothing (stall_limit)    kAlreadyExists  that id is
  //   being sent    kOutOfRange  the receiver's buffer is smaller, or more than 2^24 chunks
  //   kDataLoss  the receiver found it corrupt, or the peer writes nonsense (then the ring is of no
  //   use any more)    kCancelled
  Status Send(uint64_t event_id, ConstBytes message, Duration timeout,
              const RingSendOptions& options = {});
  // Calls under way look at their `stop`.
  void Wake();

  // Sends a dummy payload beside the ring and waits for the receiver's process to answer, whether
  // or not it receives. Errors: kDeadlineExceeded  the link is dead, or the process stands still
  //   kUnavailable  the peer is gone    kAlreadyExists  a probe is under way
  Result<RingProbeAnswer> Probe(Duration timeout);

  // Ends the link for both ends: calls under way and later ones fail with kUnavailable.
  void HangUp();

  // Messages abandoned because the receiver took nothing.
  uint64_t stalled();

 private:
  struct Impl;
  explicit RingSender(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::fabric
