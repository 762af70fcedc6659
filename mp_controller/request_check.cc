#include "mp_controller/request_check.h"

#include <algorithm>
#include <utility>

#include "cluster/namespace_codec.h"
#include "common/bytes.h"
#include "common/host_port.h"
#include "mp_controller/namespace_registry.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

constexpr size_t kNameBytesMax = 128;
constexpr size_t kAddressBytesMax = 256;
constexpr size_t kUnixPathBytesMax = 107;  // sockaddr_un without its NUL
constexpr uint64_t kCapacityBytesMax = uint64_t{1} << 50;
// As config.proto says of dram.bytes.
constexpr uint64_t kDramBytesLeast = 16 * kMiB;
constexpr uint64_t kDramBytesMost = 16 * 1024 * kGiB;

bool IsVisible(char c) { return c > 0x20 && c < 0x7f; }

// At most `bytes_max` visible ASCII characters without spaces.
Status CheckWord(std::string_view field, std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max && std::all_of(text.begin(), text.end(), IsVisible)) {
    return OkStatus();
  }
  return Error(StatusCode::kInvalidArgument,
               "{} \"{}\" ({} B): at most {} visible ASCII characters are allowed", field,
               Printable(text), text.size(), bytes_max);
}

template <typename Ids>
std::vector<NodeId> NodesOf(const Ids& ids) {
  std::vector<NodeId> nodes;
  for (const uint32_t id : ids)
    if (nodes.size() < kNodesMax) nodes.push_back(NodeId(id));
  return nodes;
}

Result<ViewVersion> CheckVersion(uint64_t term, uint64_t epoch) {
  if (term <= ViewVersion::kTermMax && epoch <= ViewVersion::kEpochMax)
    return ViewVersion(term, epoch);
  return Error(StatusCode::kInvalidArgument, "term {} or epoch {} is out of range", term, epoch);
}

}  // namespace

Status CheckDramBytes(uint64_t bytes) {
  if (bytes == 0 || (bytes >= kDramBytesLeast && bytes <= kDramBytesMost)) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "dram.bytes {}: from {} to {} are allowed", bytes,
               FormatBytes(kDramBytesLeast), FormatBytes(kDramBytesMost));
}

Status CheckHostPort(std::string_view field, std::string_view address) {
  EMS_RETURN_IF_ERROR(CheckWord(field, address, kAddressBytesMax));
  const Result<HostPort> parsed = ParseHostPort(address);
  if (parsed.ok() && parsed->port != 0) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{} \"{}\": host:port is wanted, port 1 to 65535",
               field, Printable(address));
}

Result<NodeInfo> CheckRegister(const v1::RegisterRequest& request) {
  const v1::Node& node = request.node();
  EMS_RETURN_IF_ERROR(CheckWord("node.name", node.name(), kNameBytesMax));
  if (node.name().empty()) return Error(StatusCode::kInvalidArgument, "node.name is empty");
  if (node.boot_id() == 0) return Error(StatusCode::kInvalidArgument, "node.boot_id is 0");
  EMS_RETURN_IF_ERROR(CheckHostPort("node.data_address", node.data_address()));
  EMS_RETURN_IF_ERROR(CheckWord("node.unix_path", node.unix_path(), kUnixPathBytesMax));
  EMS_RETURN_IF_ERROR(CheckWord("node.host_id", node.host_id(), kAddressBytesMax));
  EMS_RETURN_IF_ERROR(CheckWord("node.failure_domain", node.failure_domain(), kAddressBytesMax));
  if (!node.http_address().empty()) {
    EMS_RETURN_IF_ERROR(CheckHostPort("node.http_address", node.http_address()));
  }
  if (node.capacity_bytes() == 0 || node.capacity_bytes() > kCapacityBytesMax) {
    return Error(StatusCode::kInvalidArgument, "node.capacity_bytes {}: 1 to {} are allowed",
                 node.capacity_bytes(), kCapacityBytesMax);
  }
  NodeInfo info = FromProto(node);
  info.id = kNoNode;
  return info;
}

Result<HeartbeatEvent> CheckHeartbeat(const v1::HeartbeatRequest& request) {
  EMS_ASSIGN_OR_RETURN(const ViewVersion installed, CheckVersion(request.term(), request.epoch()));
  EMS_ASSIGN_OR_RETURN(const ViewVersion highest,
                       CheckVersion(request.highest_term(), request.highest_epoch()));
  return HeartbeatEvent{.id = NodeId(request.node_id()),
                        .boot_id = request.boot_id(),
                        .installed = installed,
                        .fingerprint = request.fingerprint(),
                        .highest = std::max(installed, highest),
                        .highest_fingerprint = installed > highest ? request.fingerprint()
                                                                   : request.highest_fingerprint(),
                        .refused = request.refused(),
                        .sequence = request.sequence(),
                        .table = request.namespaces_version(),
                        .table_fingerprint = request.namespaces_fingerprint(),
                        .stopping = request.stopping(),
                        .pulling_from = NodesOf(request.pulling_from()),
                        .vouching_for = NodesOf(request.vouching_for()),
                        .usage = FromProto(request.usage())};
}

Result<NamespaceInfo> CheckNamespace(const std::string& name, const v1::NamespacePolicy& policy) {
  NamespaceInfo info;
  info.name = name;
  EMS_RETURN_IF_ERROR(CheckNamespaceName(info.name));
  EMS_RETURN_IF_ERROR(FromProto(policy, &info));
  EMS_RETURN_IF_ERROR(CheckNamespacePolicy(info));
  return info;
}

}  // namespace ems::controller
