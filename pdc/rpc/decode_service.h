#pragma once
// Serves a decode instance of this process to routers in others, over gRPC.
//
// Invariant: each call's task is cancelled when its caller goes. Bound: streams_max calls, whose
// tasks count until their last event; a caller that reads slowly gets what has come meanwhile in
// one message, of `tokens_max` tokens at most.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "pdc/decode_peer.h"
#include "pdc/rpc/instance.h"

namespace ems::pdc {

// Whether the threads of an instance count on (stall_watch.h).
struct DecodeTicks {
  uint64_t ticks = 0;  // steps that were done since the start
  bool busy = false;   // there is something to do
};

struct DecodeServiceOptions {
  std::string listen = "127.0.0.1:0";  // host:port, port 0: any; or unix:/path
  InstanceInfo instance{};             // incarnation 0: a new one
  size_t streams_max = 1024;
  std::function<DecodeTicks()> ticks{};  // thread-safe, does not block; null: its health says it
};

// Threading: thread-safe. Threads: gRPC's.
class DecodeService final {
 public:
  // Tasks of this service have ids from here on; others of the same instance stay below.
  static constexpr uint64_t kFirstTask = uint64_t{1} << 47;

  // Serves at once. `decode` must outlive this; its sinks may outlive both.
  // Errors: kInvalidArgument  an instance that makes no sense, a bad address    kUnavailable
  // cannot bind
  static Result<std::unique_ptr<DecodeService>> Start(DecodeServiceOptions options,
                                                      DecodePeer* decode);
  ~DecodeService();  // ends all calls
  DecodeService(const DecodeService&) = delete;
  DecodeService& operator=(const DecodeService&) = delete;

  const std::string& address() const;  // as bound
  const InstanceInfo& instance() const;

 private:
  struct Impl;
  explicit DecodeService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
