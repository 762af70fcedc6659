#pragma once
// The socket of an RpcConnection: reads ahead for headers and keys, reads values exactly into the
// memory that they belong to, writes what lies in many places.
//
// Bound: kAheadBytes of read-ahead, and 64 KiB for bytes that nobody keeps; after kTurnBytes that
// moved without a wait, in 256 calls at most, the other connections of the thread have their turn.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "fabric/net/io_threads.h"
#include "fabric/net/turns.h"

namespace ems::fabric::internal {

// Threading: one thread (the io_context's). One read and one write at a time.
class FrameStream final {
 public:
  // A header, the longest key and a value of 4 KiB fit, so that a small Put takes one read;
  // whatever of a value comes along is copied once.
  static constexpr size_t kAheadBytes = 5 * kKiB;
  // Some 30 us of copying: what a small request behind a bulk transfer waits for. A send may be
  // longer (turns.h).
  static constexpr size_t kTurnBytes = 128 * kKiB;

  FrameStream(StreamSocket socket, Turns* turns)
      : socket_(std::move(socket)), turns_(turns), turn_(socket_.get_executor()) {}

  StreamSocket& socket() { return socket_; }
  // What was read ahead. Stays where it is until ReadMore.
  ConstBytes ahead() const {
    return std::span(ahead_).subspan(ahead_begin_, ahead_end_ - ahead_begin_);
  }
  // The first `bytes` of it, which are there; they count as read.
  ConstBytes TakeAhead(size_t bytes);
  // Adds to what was read ahead. False: end of stream or error.
  asio::awaitable<bool> ReadMore();
  // Reads at least one byte into the first of the two that has room; 0: end of stream or error. It
  // waits for `wake_bytes`, or the end of the stream, once there is nothing to read.
  asio::awaitable<size_t> ReadSome(MutableBytes first, MutableBytes second,
                                   uint64_t wake_bytes = 1);
  // Waits until so many bytes are there to be read, as far as the kernel waits for as many: over a
  // Unix socket for some. Reads nothing. False: the stream has ended with fewer.
  asio::awaitable<bool> AwaitBytes(uint64_t bytes);
  // The rest return false at the end of the stream or an error.
  asio::awaitable<bool> ReadExact(MutableBytes into);
  // Appends so many bytes: memory follows those that have come, not what a header claims.
  asio::awaitable<bool> Append(std::vector<std::byte>* to, uint64_t bytes);
  asio::awaitable<bool> Skip(uint64_t bytes);
  asio::awaitable<bool> Write(std::span<const ConstBytes> parts);
  // Lets the other connections of the thread have their turn.
  asio::awaitable<void> Yield();
  // How much of a transfer to move before that.
  size_t BytesOfTurn() const { return turns_->BytesOfSend(Clock::System().Now()); }
  // How long it has waited for turns so far: that is this end's time, not the peer's.
  Duration waited(TimePoint now) const {
    return waited_ + (waiting_since_ ? now - *waiting_since_ : Duration::zero());
  }
  // How many bytes have been read and written so far, and what else was brought in instead.
  uint64_t passed_bytes() const { return passed_bytes_; }
  void CountPassed(uint64_t bytes) { passed_bytes_ += bytes; }
  // Room for bytes that are not kept: `bytes` or 64 KiB, if that is less.
  MutableBytes Scratch(uint64_t bytes);
  // Whether the peer has closed its end, or sends no more; or this end is closed.
  bool PeerHungUp();
  void Close();

 private:
  // Wakes the connection when so many bytes are there, or the stream ends.
  void SetLowWater(uint64_t bytes);
  // Whether so many are read ahead or in the kernel. Cost: a system call, unless it is known.
  bool HasCome(uint64_t bytes);
  void CountRead(size_t bytes);
  // Counts bytes that moved in one call. True: the turn is over, Yield.
  bool TurnIsOver(size_t bytes);
  // The transfer goes on after a wait for the socket: in its turn, where it needs one.
  asio::awaitable<void> Requeue();

  StreamSocket socket_;
  Turns* const turns_;
  asio::steady_timer turn_;  // waits for one
  std::optional<TimePoint> waiting_since_;
  Duration waited_{0};
  std::array<std::byte, kAheadBytes> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  std::vector<std::byte> scratch_;
  uint64_t in_kernel_ = 0;  // at least so many bytes can be read
  uint64_t passed_bytes_ = 0;
  size_t moved_ = 0;        // in this turn
  uint64_t low_water_ = 1;  // SO_RCVLOWAT as set
};

}  // namespace ems::fabric::internal
