#pragma once
// Sends messages to one receiver, in this process or another, through a ring of slots in memory
// that both share (ring_layout.h): what XCCL's send does between two NPUs (XDS §3.1).
//
// EMULATED: shared memory of one host stands for the UB fabric's; a path (emulated_link.h) gives it
// the fabric's pace. A message is cut into chunks of a slot each; a chunk is copied into a free
// slot, then its field is stored, its tail last; the receiver's ack frees the slot. Messages carry
// an event id, which says to the receiver which of its receives they are for.
//
// Bound: `slots` chunks on their way. Until the receiver has taken a message's first chunk, two of
// that message at most: messages that nobody waits for yet leave the ring to the others. Messages
// begun and those whose end the receiver has not heard of are kEndsMax together; others wait.
#include <atomic>
#include <cstdint>
#include <memory>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "fabric/emulated_link.h"
#include "fabric/npu_device.h"
#include "fabric/ring_layout.h"
#include "fabric/socket.h"

namespace ems::fabric {

// The receiver answered. That all slots are taken says that it is alive and does not receive: it
// has no room (back-pressure). A link that is dead does not answer at all.
struct RingProbeAnswer {
  Duration round_trip{0};
  uint32_t slots_taken = 0;
  uint32_t slots = 0;
  bool saturated() const { return slots_taken == slots; }
};

// How a message is sent.
struct RingSendOptions {
  const EmulatedPath* path = nullptr;  // each chunk arrives when it says
  // Whoever wants to end the call early sets it and calls Wake: a message that the receiver gave up
  // before any of it came would wait for its time.
  const std::atomic<bool>* stop = nullptr;
  // A receiver that has taken nothing of it for so long, though it could, does not receive any
  // more, whatever it answers to probes. Until it takes something again, calls with a limit fail at
  // once.
  Duration stall_limit = Duration::max();
};

// Threading: thread-safe; messages of several threads share the slots. Goes after all calls have
// returned.
class RingSender final {
 public:
  // Of calls that nobody answers: looks at the ring for so long before it sleeps.
  static constexpr Duration kSpin = std::chrono::microseconds(50);
  static constexpr size_t kEndsMax = size_t{2} * kRingSlotsMax;

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
  // The same from HBM, in the order of `stream`; the next event of the stream has its error. The
  // time counts from when the stream comes to it. The sender must outlive the stream's work.
  // Errors: kOutOfRange  not inside of HBM
  Status SendAsync(NpuStream* stream, uint64_t event_id, HbmAddress from, uint64_t bytes,
                   Duration timeout, const EmulatedPath* path = nullptr);

  // Sends a dummy payload beside the ring and waits for the receiver's process to answer, whether
  // or not it receives. Errors: kDeadlineExceeded  the link is dead, or the process stands still
  //   kUnavailable  the peer is gone    kAlreadyExists  a probe is under way
  Result<RingProbeAnswer> Probe(Duration timeout);

  // Ends the link for both ends: calls under way and later ones fail with kUnavailable.
  void HangUp();

  // Messages given up because the receiver took nothing.
  uint64_t stalled();

  uint32_t slots() const;
  uint64_t slot_bytes() const;

 private:
  struct Impl;
  explicit RingSender(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::fabric
