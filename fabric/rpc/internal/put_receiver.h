#pragma once
// Brings the values of Puts to the memory that their session names for them: from the socket, or
// out of memory that the sender shares, checksummed on the way.
//
// A session is asked for room when the first 64 KiB of a value are there, or all of it: a header
// that announces a value takes no memory. Bound: 1 MiB of shared memory is copied before the
// thread's other connections have their turn; as much again by each of the threads that help.
#include <atomic>
#include <cstdint>

#include "common/checksum.h"
#include "common/copy_crew.h"
#include "fabric/rpc/internal/frame_stream.h"
#include "fabric/rpc/internal/session_wait.h"
#include "fabric/rpc/rpc_session.h"

namespace ems::fabric::internal {

// Threading: one thread (the io_context's). One Put at a time.
class PutReceiver final {
 public:
  // All of them must outlive this. `crew`: nullptr where nobody helps.
  PutReceiver(FrameStream* stream, SessionWait* wait, Session* session, uint64_t value_bytes_max,
              CopyCrew* crew)
      : stream_(stream),
        wait_(wait),
        session_(session),
        value_bytes_max_(value_bytes_max),
        crew_(crew) {}

  // Receives a value and its trailer; one that the session refuses is read and dropped. False: the
  // connection broke.
  asio::awaitable<bool> Receive(const PutRequest& put, wire::WireStatus* status);
  // Copies a value that its sender may still be writing.
  asio::awaitable<wire::WireStatus> Copy(const PutRequest& put, const wire::StagedValue& staged);
  // A new request begins, and a turn with it.
  void OnRequest() { copied_ = 0; }

 private:
  asio::awaitable<Outcome> Begin(const PutRequest& put, PutTarget* target);
  // `hash`: whether anybody wants the checksum.
  asio::awaitable<bool> ReceiveBytes(const PutTarget& target, bool hash, uint64_t value_bytes,
                                     uint64_t* trailer);
  // A value that is all there, a share of each thread between two turns of the others. Only the
  // checksums of its pieces are made, in the target.
  asio::awaitable<void> CopyShared(ConstBytes from, const PutTarget& target);
  // Until `bytes` of the value are there. False: its sender is gone.
  asio::awaitable<bool> AwaitProgress(const std::atomic<uint64_t>& progress, uint64_t bytes);

  FrameStream* const stream_;
  SessionWait* const wait_;
  Session* const session_;
  const uint64_t value_bytes_max_;
  CopyCrew* const crew_;
  PieceHasher hasher_;
  uint64_t copied_ = 0;  // bytes of shared memory since others had their turn
};

// What a frame or a value that is refused is answered with.
wire::WireStatus StatusOfRefusal(const Status& why);

}  // namespace ems::fabric::internal
