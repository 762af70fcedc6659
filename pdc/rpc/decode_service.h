#pragma once
// Serves a decode instance of this process to routers in others, over gRPC.
//
// Invariant: each call's task is cancelled when its caller goes. Bound: streams_max calls, whose
// tasks count until their last event; a caller that reads slowly gets what has come meanwhile in
// one message, of `tokens_max` tokens at most.
#include <cstdint>
#include <memory>
#include <string>

#include "common/status.h"
#include "pdc/decode/decode_peer.h"
#include "pdc/rpc/instance.h"

namespace ems::pdc {

struct DecodeServiceOptions {
  std::string listen = "127.0.0.1:0";  // host:port, port 0: any; or unix:/path
  InstanceInfo instance{};             // incarnation 0: a new one
  size_t streams_max = 1024;
};

// Tasks of a service have ids from here on; others of the same instance stay below.
inline constexpr uint64_t kFirstServedTask = uint64_t{1} << 47;

// Serves at once, on gRPC's threads. `decode` must outlive the service; its sinks may outlive both.
// Errors: kInvalidArgument  an instance that makes no sense, a bad address    kUnavailable  cannot
// bind
Result<std::unique_ptr<InstanceService>> ServeDecode(DecodeServiceOptions options,
                                                     DecodePeer* decode);

}  // namespace ems::pdc
