#pragma once
// The doorbell of a ring, by which a thread waits for the peer: a counter in shared memory that the
// peer increments, an eventfd that wakes a sleeping waiter, and the stream socket whose end means
// that the peer is gone.
//
// A waiter first polls the counter for the spin time, then sleeps. One thread of a side does so,
// the leader; the others wait for it. Ringing costs a system call only when the other side has
// marked itself asleep.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"

namespace ems::fabric::internal {

// Threading: thread-safe.
class RingDoorbell final {
 public:
  // One direction. The words lie in shared memory; all must outlive the doorbell.
  struct Wire {
    std::atomic<uint64_t>* count = nullptr;
    std::atomic<uint32_t>* asleep = nullptr;
    int event_fd = -1;
  };
  // Rings the other side's doorbell: the thread that it wakes sees all stores made before.
  static void Ring(const Wire& wire);

  // `socket`: a stream to the peer on which nothing more is said. Both stay the caller's.
  RingDoorbell(const Wire& wire, int socket, Duration spin)
      : wire_(wire), socket_(socket), spin_(spin) {}
  RingDoorbell(const RingDoorbell&) = delete;
  RingDoorbell& operator=(const RingDoorbell&) = delete;

  // Calls `poll` until it says true: at once, and each time there is news. From several threads at
  // a time, and never under a lock of the doorbell. A last time when the wait fails.
  // Errors: kDeadlineExceeded    kUnavailable  the peer is gone
  Status Wait(const Deadline& deadline, const std::function<bool()>& poll);
  // News of this side: waiting threads poll again.
  void Nudge();
  bool peer_is_gone() const { return gone_.load(std::memory_order_acquire); }

 private:
  struct State {
    bool has_leader = false;
    bool leader_sleeps = false;  // in poll(2)
  };
  bool Heard(uint64_t count, uint64_t news) const;
  void Lead(const Deadline& deadline, uint64_t count, uint64_t news);
  void Sleep(const Deadline& deadline);

  const Wire wire_;
  const int socket_;
  const Duration spin_;
  std::atomic<uint64_t> news_{0};  // of this side; with state_'s lock held
  std::atomic<bool> gone_{false};
  Guarded<State> state_;
  std::condition_variable wakeup_;
};

}  // namespace ems::fabric::internal
