#pragma once
// Helpers for a bench of a running cluster: a temporary namespace, client options from flags, the
// process ids of local servers, usage of nodes and namespaces.
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/bench_command.h"
#include "cluster/controller_client.h"
#include "cluster/dht_view.h"
#include "common/status.h"
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
  // Named "bench-<pid>-<time>". `dram_quota_bytes` 0: as much as there is. With more than one
  // replica it is immutable, and each copy counts in the quota. Errors: as
  // ControllerClient::CreateNamespace
  static Result<std::unique_ptr<TemporaryNamespace>> Create(const std::string& controller,
                                                            uint64_t dram_quota_bytes = 0,
                                                            uint32_t replicas = 1);
  ~TemporaryNamespace();
  TemporaryNamespace(const TemporaryNamespace&) = delete;
  TemporaryNamespace& operator=(const TemporaryNamespace&) = delete;
  const std::string& name() const { return name_; }

 private:
  ControllerClient controller_;
  const std::string name_;
  bool created_ = false;
};

// A client of the cluster that the flags name, but for what the command has to say itself.
ClientOptions ClientOptionsOf(const ClusterFlags& flags, const std::string& name_space);
// --transport auto, tcp, unix; and what it was given.
void AddTransportOption(Command* command, std::string* transport);
TransportChoice ParseTransport(const std::string& word);

// Process ids of the servers of `view` on this machine, found by asking the kernel who listens on
// their Unix sockets. Servers without one, or on other machines, are left out. Cost: one connect a
// server.
std::vector<pid_t> LocalServerPids(const DhtView& view);

// The same for who can only measure servers of this machine that local clients reach: all of them.
// Errors: kFailedPrecondition  no servers, one on another machine, without a unix_path, or that
// does not answer there; the text says which
Result<std::vector<pid_t>> RequireLocalServers(const DhtView& view);

// Whether the pools have room for so many bytes of values. Errors: kFailedPrecondition  too small;
// says what is needed
Status RequireCapacity(uint64_t working_set_bytes, const DhtView& view);
// How many threads of a server on this host serve connections.
uint32_t IoThreadsOf(pid_t server);

// All nodes, with what their last heartbeats said.
Result<v1::ListNodesReply> ListNodes(ControllerClient* controller);
bool IsLive(const v1::NodeStatus& node);
// DRAM that the live ones give to the pool.
uint64_t PoolBytes(const v1::ListNodesReply& nodes);

// What a server says of a namespace ("value_bytes", "chunk_bytes"); 0 when it knows none of it.
// Errors: as Client::ServerStats
Result<uint64_t> NamespaceBytes(Client* client, const std::string& server,
                                const std::string& name_space, const char* field);

// Servers hear of a new namespace a moment after the controller: stores small probes until all are
// taken, and removes them. Errors: what the last one was refused with, after 10 s
Status WaitUntilReady(Client* client);

}  // namespace ems::bench
