#pragma once
// Logs requests that took long, and those that failed for a reason that is no client's: one line,
// which names the request as the client's own log does. The log holds back what repeats.
#include "common/clock.h"
#include "fabric/rpc/rpc_session.h"
#include "proto/data_plane.h"

namespace ems::server {

class TieredStore;

// Threading: thread-safe.
class SlowRequests final {
 public:
  // `store` knows the names of namespaces, and must outlive it. `slow`: what takes so long is
  // logged; zero: nothing is for its time.
  SlowRequests(TieredStore* store, Duration slow)
      : store_(store), slow_(slow > Duration::zero() ? slow : Duration::max()) {}

  // Cost: two comparisons where there is nothing to say.
  void OnServed(const wire::FrameHeader& request, const fabric::Served& served) const {
    if (served.took >= slow_ || Failed(served.status)) [[unlikely]]
      Log(request, served);
  }

 private:
  // Of this server: its disk, its memory, or a bug. Others are for the client, or are tried again.
  static bool Failed(wire::WireStatus status) {
    return status == wire::WireStatus::kInternal || status == wire::WireStatus::kNotDurable ||
           status == wire::WireStatus::kChecksumMismatch;
  }
  void Log(const wire::FrameHeader& request, const fabric::Served& served) const;

  TieredStore* store_;
  Duration slow_;
};

}  // namespace ems::server
