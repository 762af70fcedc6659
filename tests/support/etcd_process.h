#pragma once
// A real etcd of one member, with its data in a folder of the test.
#include <optional>
#include <string>

#include "common/status.h"
#include "tests/support/daemon.h"

namespace ems::testing {

// Threading: one thread (the one that made it), as Daemon.
class EtcdProcess final {
 public:
  // Where etcd is on this machine; empty: it is not, and a test skips itself with kNoEtcd.
  static std::string Find();
  static constexpr const char* kNoEtcd =
      "there is no etcd on this machine: deploy/install_deps.sh installs it";

  // Ready to serve. `folder` is there already.
  static Result<EtcdProcess> Start(const std::string& folder);
  const std::string& endpoint() const { return endpoint_; }  // host:port
  Daemon& process() { return *process_; }

 private:
  std::string endpoint_;
  std::optional<Daemon> process_;
};

}  // namespace ems::testing
