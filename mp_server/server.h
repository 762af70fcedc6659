#pragma once
// One MP Server: memory, data plane, membership and health, built and taken down in order.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace ems::config {
class ServerConfig;
}

namespace ems::server {

// Threading: Start, Stop and the destructor from one thread; the rest thread-safe.
class Server final {
 public:
  // Takes the data folder, starts memory and data plane and begins to register. The controller may
  // still be down. Errors: kInvalidArgument  configuration    kFailedPrecondition  folder in use
  // kUnavailable  cannot listen, no memory
  static Result<std::unique_ptr<Server>> Start(const config::ServerConfig& config);
  ~Server();  // like a crash: nothing is handed over
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Releases the slots, answers "retry later", finishes requests in hand (up to `patience`) and
  // stops.
  void Stop(Duration patience);

  // OK once it is registered, has a view and memory, and has not been replaced.
  Status Ready() const;
  const std::string& data_address() const;
  const std::string& unix_path() const;
  // Empty without HTTP.
  const std::string& http_address() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::server
