#pragma once
// The least that a client of another cache has to do: get and set a value, fast.
//
// No pool, no parsing of more than one line, the value straight from and into the caller's memory,
// so that the peer is measured, not its client library.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::bench {

enum class PeerKind { kRedis, kMemcached };
std::string_view PeerName(PeerKind kind);  // "redis", "memcached"

// Errors of all calls: kUnavailable  the peer is gone    kInternal  it refused, in its own words,
// or its answer makes no sense. Threading: one thread.
class PeerClient {
 public:
  virtual ~PeerClient() = default;
  // Fills `into`, which has the length of the value (at least 1).
  // Errors: kNotFound  no such key    kOutOfRange  the value has another length
  virtual Status Get(std::string_view key, MutableBytes into) = 0;
  // Errors: kResourceExhausted  the peer has no room, or takes no value of this size
  virtual Status Set(std::string_view key, ConstBytes value) = 0;
};

// `address`: "host:port" or "unix:/path". Errors: as fabric::Connect
Result<std::unique_ptr<PeerClient>> ConnectPeer(PeerKind kind, const std::string& address);

}  // namespace ems::bench
