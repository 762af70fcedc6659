#pragma once
// The caches that EMS is compared with, and the least that a client of each has to do: get and set
// a value, fast.
//
// No pool, no parsing of more than one line, the value straight from and into the caller's memory,
// so that the peer is measured, not its client library. Redis is asked over RESP2
// (https://redis.io/docs/latest/develop/reference/protocol-spec/), memcached by its meta commands
// "mg" and "ms" (https://docs.memcached.org/protocols/meta/).
#include <string>
#include <string_view>

#include "bench/sides/reply_socket.h"
#include "common/bytes.h"
#include "common/status.h"

namespace ems::bench {

enum class PeerKind { kRedis, kMemcached };
std::string_view PeerName(PeerKind kind);  // "redis", "memcached"

// Why a Get was not answered with the expected value; `line` is the reply's first line.
// Errors: kNotFound  no such key    kOutOfRange  another length    kInternal  an error of the peer,
// or no reply of its protocol
Status ExplainGet(PeerKind kind, std::string_view line);
// The same for a Set that was not answered with what says that the value is stored.
// Errors: kResourceExhausted  no memory, or a value that is too large    kInternal  anything else
Status ExplainSet(PeerKind kind, std::string_view line);

// Errors of all calls: kUnavailable  the peer is gone    kInternal  it refused, in its own words,
// or its answer makes no sense. Move-only. Threading: one thread.
class PeerClient final {
 public:
  // `address`: "host:port" or "unix:/path". Errors: as fabric::Connect
  static Result<PeerClient> Connect(PeerKind kind, const std::string& address);
  PeerClient(PeerKind kind, ReplySocket socket) : kind_(kind), socket_(std::move(socket)) {}
  // Fills `into`, which has the length of the value (at least 1).
  // Errors: kNotFound  no such key    kOutOfRange  the value has another length
  Status Get(std::string_view key, MutableBytes into);
  // Errors: kResourceExhausted  the peer has no room, or takes no value of this size
  Status Set(std::string_view key, ConstBytes value);

 private:
  PeerKind kind_;
  ReplySocket socket_;
  std::string request_, expected_;  // kept for their memory
};

}  // namespace ems::bench
