#pragma once
// Simulated servers: each registers with a controller over loopback gRPC and sends a heartbeat a
// second, and one when there is a new view, as having installed it. They store and serve nothing.
// Bound: 8 heartbeats under way, 8192 wait.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cluster/dht_view.h"
#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

// The server of this number, with names and addresses as long as those of a data centre.
NodeInfo SimulatedNode(uint32_t number);

// Threading: one thread (the owner's); heartbeats are sent by others of its own.
class ServerLoad final {
 public:
  // `newest`: the view that servers have installed; called by any thread.
  ServerLoad(const std::string& controller, std::function<ViewCache::View()> newest);
  // Waits for the calls under way.
  ~ServerLoad();
  ServerLoad(const ServerLoad&) = delete;
  ServerLoad& operator=(const ServerLoad&) = delete;

  // `count` further servers register, one after the other. Errors: of the call
  Status Join(size_t count);
  // The one that registered last stops in order. Errors: of the call
  Status LeaveLast();

  // Heartbeats that were not answered, or with an error.
  uint64_t failed_beats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::bench
