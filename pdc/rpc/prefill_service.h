#pragma once
// Serves a prefill process to decode workers in other processes of this host: calls over gRPC,
// rings over a Unix socket beside it.
//
// A decode worker offers its ring under a session of its own making; its calls name the session.
// A session ends, with all that runs for it, when its link is found dead or nobody has asked for
// the pulse for `session_lease`.
// Invariant: each call that a task was started for cancels it when its caller goes. Bound:
// streams_max calls, whose tasks count until their last event; sessions_max rings.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "pdc/rpc/instance.h"
#include "pdc/rpc/prefill_host.h"

namespace ems::pdc {

struct PrefillServiceOptions {
  std::string listen = "127.0.0.1:0";  // host:port, port 0: any; or unix:/path
  InstanceInfo instance{};             // incarnation 0: a new one; the socket's path is needed
  size_t streams_max = 1024;
  size_t sessions_max = 64;
  Duration session_lease = std::chrono::seconds(10);
};

// Serves at once, on gRPC's threads and "ems-rings". Its end detaches all rings. `host` must
// outlive the service, and all events of tasks may come after it. Errors: kInvalidArgument  an
// instance that makes no sense, a bad address    kAlreadyExists a process listens on the socket
// kUnavailable  cannot bind
Result<std::unique_ptr<InstanceService>> ServePrefill(PrefillServiceOptions options,
                                                      PrefillHost* host);

}  // namespace ems::pdc
