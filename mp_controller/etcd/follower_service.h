#pragma once
// What a controller answers that does not lead: every call of every service gets kUnavailable and
// the address of the one that does (proto/cluster_metadata.h). It knows no call by name, so it
// holds for those of later versions, too.
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"

namespace ems::controller {

// Threading: thread-safe.
class FollowerService final {
 public:
  // Serves on `listen` (host:port, port 0: any) at once. `leader`: who leads, empty: nobody is
  // known. Errors: kUnavailable  cannot bind
  static Result<std::unique_ptr<FollowerService>> Start(const std::string& listen,
                                                        std::function<std::string()> leader);
  ~FollowerService();
  FollowerService(const FollowerService&) = delete;
  FollowerService& operator=(const FollowerService&) = delete;
  int port() const;

 private:
  struct Impl;
  explicit FollowerService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
