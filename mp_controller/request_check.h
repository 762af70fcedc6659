#pragma once
// Requests of the control plane as they arrive → checked values. Pure, no allocation beyond the
// result. Bound: a name has 128 bytes, an address 256, a Unix path 107; capacity is 1 B to 2^50 B;
// of servers that one fetches from, the first kNodesMax.
#include <string>
#include <string_view>
#include <vector>

#include "cluster/view_cache.h"
#include "common/status.h"
#include "mp_controller/membership.h"

namespace ems::v1 {
class RegisterRequest;
class HeartbeatRequest;
class NamespacePolicy;
}  // namespace ems::v1

namespace ems::controller {

struct HeartbeatEvent {
  NodeId id;
  uint64_t boot_id = 0;
  ViewVersion installed;
  uint64_t fingerprint = 0;          // of that view
  ViewVersion highest;               // that was ever installed there
  uint64_t highest_fingerprint = 0;  // of that one
  bool refused = false;              // it knows that it has no lease
  uint64_t sequence = 0;             // of this process's heartbeats; 0: not told
  uint64_t table = 0;                // version of the namespaces that it has; 0: not told
  uint64_t table_fingerprint = 0;
  bool stopping = false;               // it gives its slots away before it stops
  std::vector<NodeId> pulling_from{};  // servers that it fetches what they keep from
  std::vector<NodeId> vouching_for{};  // those that it names to who fetches from it
  NodeUsage usage;
};

// All errors are kInvalidArgument and name the field, what was found and what is allowed.
Result<NodeInfo> CheckRegister(const v1::RegisterRequest& request);
Result<HeartbeatEvent> CheckHeartbeat(const v1::HeartbeatRequest& request);
// Of a request to make or change one.
Result<NamespaceInfo> CheckNamespace(const std::string& name, const v1::NamespacePolicy& policy);
// What a server's memory may be set to; 0: nothing is set.
Status CheckDramBytes(uint64_t bytes);
// host:port with a port of 1 to 65535; IPv6 hosts stand in brackets.
Status CheckHostPort(std::string_view field, std::string_view address);

}  // namespace ems::controller
