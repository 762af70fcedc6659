#pragma once
// What a bench needs of the cluster it measures: a namespace of its own, and the processes behind
// it.
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "mp_controller/view/controller_client.h"
#include "mp_controller/view/dht_view.h"
#include "mp_sdk/client.h"

namespace ems::v1 {
class ListNodesReply;
class NodeStatus;
}  // namespace ems::v1

namespace ems::bench {

// A namespace that is deleted, with all its objects, when this goes. Threading: one thread.
class TemporaryNamespace final {
  struct Passkey {};  // only Create constructs

 public:
  TemporaryNamespace(Passkey, const std::string& controller);
  // Named "bench-<pid>-<time>". Errors: as ControllerClient::CreateNamespace
  static Result<std::unique_ptr<TemporaryNamespace>> Create(const std::string& controller);
  ~TemporaryNamespace();
  TemporaryNamespace(const TemporaryNamespace&) = delete;
  TemporaryNamespace& operator=(const TemporaryNamespace&) = delete;
  const std::string& name() const { return name_; }

 private:
  ControllerClient controller_;
  const std::string name_;
  bool created_ = false;
};

// Process ids of the servers of `view` on this machine, found by asking the kernel who listens on
// their Unix sockets. Servers without one, or on other machines, are left out. Cost: one connect a
// server.
std::vector<pid_t> LocalServerPids(const DhtView& view);

// The same for who can only measure servers of this machine that local clients reach: all of them.
// Errors: kFailedPrecondition  no servers, one on another machine, without a unix_path, or that
// does not answer there; the text says which
Result<std::vector<pid_t>> RequireLocalServers(const DhtView& view);

// All nodes, with what their last heartbeats said.
Result<v1::ListNodesReply> ListNodes(ControllerClient* controller);
bool IsLive(const v1::NodeStatus& node);
// DRAM that the live ones give to the pool.
uint64_t PoolBytes(const v1::ListNodesReply& nodes);

// Servers hear of a new namespace a moment after the controller: stores small probes until all are
// taken, and removes them. Errors: what the last one was refused with, after 10 s
Status WaitUntilReady(Client* client);

}  // namespace ems::bench
