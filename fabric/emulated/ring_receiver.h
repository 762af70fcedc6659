#pragma once
// Receives the messages of one sender, in this process or another, from a ring of entries in memory
// of this process (ring_layout.h): what XCCL's receive does between two NPUs (XDS §3.1).
//
// EMULATED, as ring_sender.h says. Messages find their receive by event id, in any order; chunks
// may come in any order, too. Those that nobody waits for stay in their entries: the sender feels
// it (back-pressure). A waiting thread moves chunks that have come, also for others; a thread
// answers probes.
//
// Bound: the ring's memory; one receive an event id, receives of one channel kPostedMax.
#include <cstdint>
#include <memory>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "fabric/emulated/ring_layout.h"
#include "fabric/net/socket.h"

namespace ems::fabric {

struct RingOptions {
  uint32_t entries = 16;
  uint64_t entry_bytes = 256 * kKiB;  // multiple of 4 KiB
  bool checksums = false;             // of each chunk: the sender makes, the receiver checks them
  Duration spin = std::chrono::microseconds(50);  // looks at the ring so long before it sleeps
};

// Threading: thread-safe. Goes after all calls have returned and all its receives have gone.
class RingReceiver final {
 public:
  static constexpr size_t kPostedMax = 65536;

  // A receive that was posted. Goes before its receiver; destroying it without having waited
  // for its end abandons it. Threading: one thread (holder).
  class Posted final {
   public:
    ~Posted();
    Posted(const Posted&) = delete;
    Posted& operator=(const Posted&) = delete;
    // Waits until the message is in its buffer: how many bytes it has. A receive that was not over
    // in time may be waited for again. Errors: as Receive
    Result<uint64_t> Wait(Duration timeout);
    // Over: Wait does not block.
    bool done();

   private:
    friend class RingReceiver;
    struct Ticket;
    Posted(RingReceiver* receiver, std::shared_ptr<Ticket> ticket);
    RingReceiver* const receiver_;
    const std::shared_ptr<Ticket> ticket_;
  };

  // Makes the ring and offers it over `socket`, a connected Unix stream, to the sender at its other
  // end (RingSender::Accept). Does not wait for it. Errors: kInvalidArgument  such a ring is not
  // possible    kResourceExhausted  no such memory    kUnavailable  the peer is gone    kInternal
  static Result<std::unique_ptr<RingReceiver>> Offer(Fd socket, const RingOptions& options);
  ~RingReceiver();
  RingReceiver(const RingReceiver&) = delete;
  RingReceiver& operator=(const RingReceiver&) = delete;

  // Receives the message with `event_id` into `into`: how many bytes it has. An id may be used
  // again once its receive has ended.
  // Errors: kDeadlineExceeded  it did not come in time, or the sender gave it up    kUnavailable
  //   the peer is gone, and the message is not here whole    kAlreadyExists  that id is being
  //   received    kOutOfRange  it is larger than `into`    kDataLoss  its checksum does not match,
  //   or the peer writes nonsense (then the ring is of no use any more)
  Result<uint64_t> Receive(uint64_t event_id, MutableBytes into, Duration timeout);
  // The same in two steps: many may be under way at once. `into` must stay until the receive goes.
  // Errors: kAlreadyExists    kResourceExhausted  kPostedMax are under way    kDataLoss
  Result<std::unique_ptr<Posted>> Post(uint64_t event_id, MutableBytes into);

  // Moves what has come, without waiting: for a caller that waits for no message. Until then
  // the sender does not get back the entries of abandoned messages.
  void TakeIn();

  // The sender's process has gone.
  bool peer_is_gone() const;

 private:
  struct Impl;
  explicit RingReceiver(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::fabric
