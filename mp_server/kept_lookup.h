#pragma once
// Which keys of an Exists or MultiExists that are not here are kept where their slots were before:
// one call to each such server (forward/forwarder.h).
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "fabric/rpc/rpc_session.h"
#include "mp_server/forward/forwarder.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: one thread (the connection's "ems-io").
class KeptLookup final {
 public:
  // As Session's.
  void SetWaker(std::function<void()> waker) { waker_ = std::move(waker); }
  // A lookup is under way, or has ended and is not settled yet.
  bool asking() const { return lookup_ != nullptr; }
  // All keys of the request have been looked for here, as `results` say. Asks for those that miss,
  // or, when that is under way already, takes over what has come. With a wait: ask again.
  // `forwarder` may be null; `replicas` are the namespace's.
  fabric::Outcome Ask(Forwarder* forwarder, const wire::FrameHeader& request, std::string_view key,
                      ConstBytes body, std::span<wire::ItemResult> results, uint32_t replicas = 1);
  // The request has been answered.
  void Sent() { lookup_.reset(); }

 private:
  std::function<void()> waker_;
  LookupPtr lookup_;
};

}  // namespace ems::server
