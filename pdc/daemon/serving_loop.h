#pragma once
// One process of the serving loop: a router with the HTTP API, prefill workers, decode workers, or
// all of them, built and taken down in order.
//
//   all      HTTP ─► router ─► decode workers ─► prefill workers      calls within the process
//   router   HTTP ─► router ─┐ gRPC
//   decode   decode worker ◄─┘ ─┐ gRPC; KV comes over a ring of shared memory
//   prefill  prefill worker ◄───┘
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::config {
class PdcConfig;
}

namespace ems::pdc {

// What each key allows and all together do not.   Errors: kInvalidArgument
Status CheckLoopConfig(const config::PdcConfig& config);
// What the configuration wants of this machine and it has not: see common/machine_check.h.
std::vector<Status> CheckLoopMachine(const config::PdcConfig& config);

// Threading: Start, Stop and the destructor from one thread; the rest thread-safe.
class ServingLoop final {
 public:
  // Loads the model and serves. The pool and other processes may come later.
  // Errors: kInvalidArgument  configuration    those of LoadLoopModel    kUnavailable  cannot
  // listen    kResourceExhausted  no memory
  static Result<std::unique_ptr<ServingLoop>> Start(const config::PdcConfig& config);
  ~ServingLoop();
  ServingLoop(const ServingLoop&) = delete;
  ServingLoop& operator=(const ServingLoop&) = delete;

  // Takes no more requests and lets those in hand end for up to `patience`, then ends them with an
  // error. A part's requests go back to the asking process, to go on elsewhere, when it is
  // destroyed.
  void Stop(Duration patience);

  // OK when it would serve: a router with a decode worker that is well and has a prefill worker,
  // a decode worker with a prefill worker that is well.
  Status Ready();
  const std::string& http_address() const;  // as bound
  const std::string& address() const;       // of the gRPC service; empty without one

 private:
  struct Impl;
  explicit ServingLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
