#pragma once
// The whole controller in one object: what main.cc runs and what tests start in their own process.
#include <memory>
#include <string>

#include "common/status.h"
#include "mp_controller/tenure.h"

namespace ems::config {
class ControllerConfig;
}

namespace ems::controller {

// Errors: kInvalidArgument  values that do not fit together, e.g. a lease shorter than two
// heartbeats
Result<ControllerOptions> MakeOptions(const config::ControllerConfig& config);

// Threading: one thread (the owner); serves on threads of its own.
class Controller final {
 public:
  explicit Controller(ControllerOptions options);
  ~Controller();  // Stop
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Opens the store, publishes the first view of a new term and serves; of several controllers:
  // serves, and follows until it leads. Once. Errors: of ControllerStore::Open and Load, of
  // Candidate::Start; kUnavailable  an address cannot be bound
  Status Start();
  // Ends streams and calls (at most 5 s), closes the store. Idempotent.
  void Stop();

  // Valid between Start and Stop. Not OK: it takes no part any more, and an operator has to act.
  Status fault() const;
  int port() const;
  // host:port as bound.
  std::string address() const;
  std::string http_address() const;  // empty: no HTTP

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
