#pragma once
// One connection of an RpcServer: reads a request, lets the session answer, writes the answer,
// again.
//
// Private to fabric/, so Asio may show here. The whole object lives on one io_context that one
// thread runs.
#include <array>
#include <asio.hpp>
#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "common/guarded.h"
#include "fabric/internal/vigil.h"
#include "fabric/rpc_server.h"
#include "fabric/rpc_session.h"

namespace ems::fabric::internal {

using StreamSocket = asio::generic::stream_protocol::socket;

// Threading: one thread (the io_context's).
class RpcConnection final : public std::enable_shared_from_this<RpcConnection> {
 public:
  RpcConnection(StreamSocket socket, const RpcServerOptions& options, const RpcMetrics& metrics,
                std::unique_ptr<Session> session, std::atomic<int>* busy, Vigil* vigil);
  ~RpcConnection();

  // Serves until the peer goes, breaks the rules or is too slow.
  asio::awaitable<void> Run();
  // Called a few times a second: closes the connection when the present step has taken too long.
  void CheckDeadline(TimePoint now);
  // Wakes Run with an error.
  void Close();
  // From now on the session's waker does nothing: the loop is about to go.
  void IgnoreWakes();
  // Of the session: asks about a request that waits at once. Ends with the connection.
  class Waker;

 private:
  asio::awaitable<bool> ServeOne();
  asio::awaitable<bool> ReadHeaderAndKey(wire::FrameHeader* request);
  asio::awaitable<bool> RefuseFrame(const wire::FrameHeader& request, const Status& why);
  asio::awaitable<void> AnswerHttp();
  asio::awaitable<bool> ServePut(const wire::FrameHeader& request, std::string_view key);
  asio::awaitable<bool> ServeMultiPut(const wire::FrameHeader& request);
  asio::awaitable<bool> ServePutStaged(const wire::FrameHeader& request, std::string_view key);
  asio::awaitable<bool> ServeMultiPutStaged(const wire::FrameHeader& request);
  // Lets the session make the Puts of a request what they were to be.
  asio::awaitable<void> SettlePuts(std::span<wire::WireStatus> statuses);
  asio::awaitable<bool> AnswerPuts(const wire::FrameHeader& request,
                                   std::span<wire::WireStatus> statuses);
  // Reads heads and keys of a Multi request, and what follows them up to its end or its values.
  // False: the connection ends.
  asio::awaitable<bool> ReadItemTable(const wire::FrameHeader& request);
  // Copies one value out of registered memory.
  asio::awaitable<wire::WireStatus> CopyStaged(const PutRequest& put,
                                               const wire::StagedValue& staged);
  // Whether the peer has closed its end, or sends no more.
  bool PeerHungUp();
  // Until `bytes` of the value are there. False: its sender is gone.
  asio::awaitable<bool> AwaitProgress(const std::atomic<uint64_t>& progress, uint64_t bytes);
  asio::awaitable<bool> ServeOther(const wire::FrameHeader& request, std::string_view key);
  // Receives one value and its trailer. False: the connection broke.
  asio::awaitable<bool> ReceiveValue(const PutRequest& put, wire::WireStatus* status);
  asio::awaitable<bool> ReceiveBytes(const PutTarget& target, bool hash, uint64_t value_bytes,
                                     uint64_t* trailer);
  // Asks `step` until it stops wanting to wait, or the request has waited enough over all its
  // items.
  template <typename Step>
  asio::awaitable<Outcome> Settle(Step step);

  // Adds bytes to the read-ahead buffer. False: end of stream or error.
  asio::awaitable<bool> ReadMore();
  asio::awaitable<bool> ReadExact(MutableBytes into);
  // Appends so many bytes to table_.
  asio::awaitable<bool> ReadTable(uint64_t bytes);
  asio::awaitable<bool> Skip(uint64_t bytes);
  // Reads at least one byte into the first of the two that has room; 0: end of stream or error.
  asio::awaitable<size_t> ReadSome(MutableBytes first, MutableBytes second);
  asio::awaitable<bool> WriteAnswer(const wire::FrameHeader& request, wire::WireStatus status);
  asio::awaitable<bool> WriteAll(std::span<const ConstBytes> parts);

  ConstBytes ahead() const {
    return std::span(ahead_).subspan(ahead_begin_, ahead_end_ - ahead_begin_);
  }
  size_t TakeAhead(MutableBytes into);
  // Wakes this connection when so many bytes are there, or the stream ends.
  void SetLowWater(uint64_t bytes);
  void Trim();
  void SetDeadline(Duration timeout);
  void SetTransferDeadline(uint64_t bytes);

  StreamSocket socket_;
  const RpcServerOptions& options_;
  const RpcMetrics& metrics_;
  std::unique_ptr<Session> session_;
  std::atomic<int>* busy_;  // requests in hand over all connections
  Vigil* vigil_;            // of the thread
  asio::steady_timer timer_;
  TimePoint deadline_ = TimePoint::max();
  Duration settle_asked_{0};  // how long the present request may wait for its session at most
  Duration settled_{0};       // how long it has
  std::shared_ptr<Waker> waker_;
  PieceHasher hasher_;
  Answer answer_;
  std::vector<std::byte> table_;    // item table of a Multi request
  std::vector<std::byte> scratch_;  // where values go that are not kept
  std::vector<ConstBytes> parts_;   // the answer being written
  // A header and the longest key fit; whatever of a value comes along is copied once, 1 KiB at
  // most.
  std::array<std::byte, 1024> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  uint64_t copied_ = 0;      // bytes of staged values since others had their turn
  bool spoken_ = false;      // a whole header has come
  uint64_t wake_bytes_ = 1;  // how many bytes are worth waking up for
  uint64_t low_water_ = 1;   // SO_RCVLOWAT as set
};

template <typename Step>
asio::awaitable<Outcome> RpcConnection::Settle(Step step) {
  Outcome outcome = step();
  while (outcome.wait > Duration::zero()) {
    const Duration left = std::min(outcome.patience, settle_asked_) - settled_;
    if (left <= Duration::zero()) break;
    const TimePoint began = Clock::System().Now();
    timer_.expires_after(std::min(outcome.wait, left));
    asio::error_code error;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (!socket_.is_open()) break;  // closed; otherwise the waker has cancelled the timer
    settled_ += Clock::System().Now() - began;
    outcome = step();
  }
  co_return outcome;
}

// What a frame that is refused is answered with.
wire::WireStatus StatusOfRefusal(const Status& why);

// Aborts a Put that is not ended, also when a stopping server destroys the coroutine in the middle.
class OpenPut final {
 public:
  explicit OpenPut(Session* session) : session_(session) {}
  ~OpenPut() {
    if (session_ != nullptr) session_->AbortPut();
  }
  OpenPut(const OpenPut&) = delete;
  OpenPut& operator=(const OpenPut&) = delete;
  Session* Release() { return std::exchange(session_, nullptr); }

 private:
  Session* session_;
};

}  // namespace ems::fabric::internal
