#pragma once
// One MP Server: memory, data plane, membership and health, built and taken down in order.
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace ems::config {
class ServerConfig;
}

namespace ems::server {

class FdStore;

// Threading: Start, Stop and the destructor from one thread; the rest thread-safe.
class Server final {
 public:
  // Takes the data folder, starts memory and data plane and begins to register. The controller may
  // still be down. Errors: kInvalidArgument  configuration    kFailedPrecondition  folder in use
  // kUnavailable  cannot listen, no memory
  static Result<std::unique_ptr<Server>> Start(const config::ServerConfig& config);
  // With what the process before has put into `fds`, and for the next one (restart.in_place).
  static Result<std::unique_ptr<Server>> Start(const config::ServerConfig& config,
                                               std::unique_ptr<FdStore> fds);
  ~Server();  // like a crash: nothing is handed over
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Before Stop, where the next process of this server would find nothing of what is here: has its
  // slots given to others and serves on until they have what they want of it, `most` at most, or
  // until `hurried`, which it asks about every `pause`, says that there is no time for that.
  // Returns immediately where nobody could have its slots, and without a controller.
  void Drain(Duration most, const std::function<bool(Duration pause)>& hurried);

  // Answers "retry later", finishes requests in hand (up to `patience`), hands over what is in DRAM
  // where it can, releases the slots where nothing is kept for the next process, and stops: nothing
  // but the destructor may be called then.
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
