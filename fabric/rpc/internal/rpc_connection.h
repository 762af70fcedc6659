#pragma once
// One connection of an RpcServer: reads a request, lets the session answer, writes the answer,
// again. The whole object lives on one io_context that one thread runs.
//
// Bound: one request in hand; a table or answer body of more than 256 KiB is given back after it.
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fabric/net/busy_poll.h"
#include "fabric/net/io_threads.h"
#include "fabric/rpc/internal/frame_stream.h"
#include "fabric/rpc/internal/put_receiver.h"
#include "fabric/rpc/internal/session_wait.h"
#include "fabric/rpc/rpc_options.h"
#include "fabric/rpc/rpc_session.h"

namespace ems::fabric::internal {

// Threading: one thread (the io_context's).
class RpcConnection final : public IoConnection,
                            public std::enable_shared_from_this<RpcConnection> {
 public:
  RpcConnection(StreamSocket socket, const RpcServerOptions& options, const RpcMetrics& metrics,
                std::unique_ptr<Session> session, std::atomic<int>* busy, BusyPoll* busy_poll,
                Turns* turns);
  ~RpcConnection() override;

  // Serves until the peer goes, breaks the rules or is too slow.
  asio::awaitable<void> Run();
  void CheckDeadline(TimePoint now) override;
  TimePoint idle_since() const override { return idle_since_; }
  void MakeRoom() override;
  // From now on the session's waker does nothing.
  void Abandon() override { wait_.IgnoreWakes(); }

 private:
  // Wakes Run with an error.
  void Close();
  asio::awaitable<bool> ServeOne();
  asio::awaitable<bool> ReadHeaderAndKey(wire::FrameHeader* request);
  asio::awaitable<bool> RefuseFrame(const wire::FrameHeader& request, const Status& why);
  // Of a request that does not match its checksum: skips the `rest` of it. Nothing has been done.
  asio::awaitable<bool> RefuseDamaged(const wire::FrameHeader& request, uint64_t rest);
  asio::awaitable<void> AnswerHttp();
  asio::awaitable<bool> ServePut(const wire::FrameHeader& request, std::string_view key);
  asio::awaitable<bool> ServeMultiPut(const wire::FrameHeader& request);
  asio::awaitable<bool> ServePutStaged(const wire::FrameHeader& request, std::string_view key);
  asio::awaitable<bool> ServeMultiPutStaged(const wire::FrameHeader& request);
  // Lets the session make the Puts of a request what they were to be.
  asio::awaitable<void> SettlePuts(std::span<wire::WireStatus> statuses);
  asio::awaitable<bool> AnswerPuts(const wire::FrameHeader& request,
                                   std::span<wire::WireStatus> statuses);
  // Reads heads and keys of a Multi request, and what follows them up to its end or its values, and
  // checks them. With a value the request has been answered: whether the connection goes on.
  asio::awaitable<std::optional<bool>> ReadItemTable(const wire::FrameHeader& request);
  asio::awaitable<bool> ServeOther(const wire::FrameHeader& request, std::string_view key);
  asio::awaitable<bool> WriteAnswer(const wire::FrameHeader& request, wire::WireStatus status);
  void Trim();
  // The present step ends after `timeout`, or later by as much as its bytes take that pass, and
  // by its waits for turns.
  void SetDeadline(Duration timeout) { SetDeadline(timeout, Clock::System().Now()); }
  void SetDeadline(Duration timeout, TimePoint now);

  const RpcServerOptions& options_;
  const RpcMetrics& metrics_;
  std::unique_ptr<Session> session_;
  std::atomic<int>* busy_;  // requests in hand over all connections
  BusyPoll* busy_poll_;     // of the thread
  Turns* turns_;            // the same
  FrameStream stream_;
  SessionWait wait_;
  PutReceiver receiver_;
  TimePoint deadline_ = TimePoint::max();
  uint64_t passed_before_ = 0;  // of the stream's bytes, when the deadline was set
  Duration waited_before_{0};   // likewise
  TimePoint idle_since_ = TimePoint::max();
  wire::FrameHeader request_;  // in hand, or the last one
  TimePoint begun_{};          // when its header was there
  TimePoint answered_{};       // when its answer was made
  Served served_;              // of it
  Answer answer_;
  std::vector<std::byte> table_;   // of a request's body, all that is no value
  std::vector<ConstBytes> parts_;  // the answer being written
  bool spoken_ = false;            // a whole header has come
  bool putting_ = false;           // values are on their way
};

}  // namespace ems::fabric::internal
