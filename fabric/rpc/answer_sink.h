#pragma once
// What a caller does with the answer to a request (rpc_channel.h).
#include <cstdint>
#include <span>

#include "common/bytes.h"
#include "common/checksum.h"
#include "common/status.h"
#include "proto/data_plane.h"

namespace ems::fabric {

// The destination of an answer. Called from RpcChannel::Advance().
class AnswerSink {
 public:
  struct Value {
    uint64_t bytes = 0;
    std::span<const MutableBytes>
        into;  // together at least `bytes`, or the value is read and dropped
    uint64_t first_piece_bytes = kPieceBytes;
  };
  virtual ~AnswerSink() = default;
  // Where the answer's body probably goes, if that is one value: what comes together with the
  // header is read there at once, but for as many bytes as an error's text can have. Empty: not
  // known.
  virtual MutableBytes Expected() const { return {}; }
  // An answer with status kOk begins. Returns how many bytes of its body come before the values.
  virtual uint64_t OnHeader(const wire::FrameHeader& header) = 0;
  // Those bytes. An error ends the connection.
  virtual Status OnTable(ConstBytes table) = 0;
  // The next value; false when there is none.
  virtual bool NextValue(Value* value) = 0;
  // The value is in place, or dropped; `checksum` is that of the bytes received. What it has to be
  // is for the sink to say, with wire::FoldChecksum and the request's header.
  virtual void OnValue(uint64_t checksum) = 0;
};

}  // namespace ems::fabric
