#pragma once
// The turns of a thread's transfers: whoever asks for little waits for the part of a transfer that
// moves just then, and for no other, however many transfers there are. Between two parts the thread
// looks at its sockets and serves the requests that have come.
//
// All that only while small requests come: among themselves, transfers are a tenth faster with long
// sends and without a queue.
//
// Bound: the first small request of a while waits for a long send of each connection, those of the
// next kQuiet for one short part. Of each connection one transfer waits at most.
#include <asio.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "common/bytes.h"
#include "common/clock.h"

namespace ems::fabric {

// Threading: one thread (the one that moves the bytes). Outlives the io_context that it runs.
class Turns final {
 public:
  static constexpr uint64_t kSmallBytes = 64 * kKiB;  // of a request and its answer together
  static constexpr size_t kShortBytes = 128 * kKiB;   // some 30 us of copying
  static constexpr size_t kLongBytes = kMiB;
  static constexpr Duration kQuiet = std::chrono::seconds(1);
  static constexpr Duration kTimePerTurn = std::chrono::microseconds(100);

  // `time_per_turn`: for each such time that requests have taken, a transfer more has its turn.
  explicit Turns(Duration time_per_turn = kTimePerTurn) : time_per_turn_(time_per_turn) {}
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // A request with its answer took so many bytes.
  void OnServed(TimePoint now, uint64_t bytes) {
    if (bytes <= kSmallBytes) short_until_ = now + kQuiet;
  }
  // How much of a value to send in one call.
  size_t BytesOfSend(TimePoint now) const { return AreShort(now) ? kShortBytes : kLongBytes; }
  // Whether small requests have come of late, so that each part of a transfer needs a turn.
  bool AreShort(TimePoint now) const { return now < short_until_; }
  // Waits until it is the caller's turn: behind all who asked before, and the requests that have
  // come. Where these take long, several transfers have their turns between two looks: about a
  // third of the time. `own` is a timer of the caller, which nothing waits for; cancelling it ends
  // the wait.
  asio::awaitable<void> Next(asio::steady_timer* own);

 private:
  class Place;
  // Looks at the sockets, then gives the first one its turn; again, as long as anyone waits.
  void Give(const asio::any_io_executor& executor);

  const Duration time_per_turn_;
  TimePoint short_until_{};
  std::deque<asio::steady_timer*> waiting_;
  bool giving_ = false;
  TimePoint gave_{};  // the last turns
};

}  // namespace ems::fabric
