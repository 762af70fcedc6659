#pragma once
// The whole controller in one object: what main.cc runs and what tests start in their own process.
#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "mp_controller/membership.h"

namespace ems::config {
class ControllerConfig;
}

namespace ems::controller {

struct ControllerOptions {
  std::string listen = "127.0.0.1:0";
  std::string http_listen;           // empty: no HTTP
  bool page = true;                  // it shows the cluster, too
  std::string page_password_file{};  // empty: to whoever reaches http_listen
  std::string data_dir;
  MembershipOptions membership;
  std::string default_namespace = "default";
  size_t watchers_max = 16384;
  Duration model_unused_max{};  // zero: versions of models stay until they are removed
};

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

  // Opens the store, publishes the first view of a new term and serves. Once. Errors: of
  // ControllerStore::Open and Load; kUnavailable  an address cannot be bound
  Status Start();
  // Ends streams and calls (at most 5 s), closes the store. Idempotent.
  void Stop();

  // Valid between Start and Stop.
  int port() const;
  // host:port as bound.
  std::string address() const;
  std::string http_address() const;  // empty: no HTTP

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
