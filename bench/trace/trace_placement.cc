#include "bench/trace/trace_placement.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "bench/harness/bench_cluster.h"
#include "bench/trace/trace_replay.h"
#include "ems_context/context_cache.h"

namespace ems::bench {
namespace {

constexpr size_t kSaveBlocks = 500;

std::vector<std::string> KeysOf(const Trace& trace, uint64_t block_bytes) {
  const context::BlockHasher hasher = TraceHasher(block_bytes);
  std::unordered_set<uint64_t> seen;
  std::vector<std::string> keys;
  for (const TraceRequest& request : trace.requests) {
    for (const uint64_t block : request.blocks) {
      if (keys.size() == kPlacementKeysMax) return keys;
      if (seen.insert(block).second) keys.push_back(TraceKey(hasher, block));
    }
  }
  return keys;
}

Status SaveAll(std::span<const std::string> keys, Client* client) {
  context::ClientBlockStore store(client);
  context::ContextCache cache(&store);
  const std::vector<std::byte> value(kPlacementValueBytes, std::byte{1});
  const std::vector<ConstBuffers> values(kSaveBlocks, ConstBuffers(ConstBytes(value)));
  for (size_t done = 0; done < keys.size(); done += kSaveBlocks) {
    const size_t count = std::min(kSaveBlocks, keys.size() - done);
    const context::SaveResult saved =
        cache.Save(keys.subspan(done, count), std::span(values).first(count));
    for (const Status& status : saved.blocks) EMS_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<PlacedBytes>> MeasurePlacement(const Trace& trace, uint64_t block_bytes,
                                                  const std::string& name_space, Client* client) {
  const std::vector<std::string> keys = KeysOf(trace, block_bytes);
  EMS_RETURN_IF_ERROR(SaveAll(keys, client));
  std::vector<PlacedBytes> servers;
  uint64_t held = 0;
  for (const NodeInfo& node : client->views().view()->nodes()) {
    EMS_ASSIGN_OR_RETURN(const uint64_t bytes,
                         NamespaceBytes(client, node.name, name_space, "value_bytes"));
    servers.push_back({node.name, node.capacity_bytes, bytes});
    held += bytes;
  }
  const uint64_t stored = keys.size() * kPlacementValueBytes;
  if (held != stored)
    return Error(StatusCode::kInternal, "placement: {} bytes were stored, the servers hold {}",
                 stored, held);
  return servers;
}

double AboveSharePercent(const std::vector<PlacedBytes>& servers) {
  double bytes = 0, capacity = 0;
  for (const PlacedBytes& server : servers) {
    bytes += static_cast<double>(server.bytes);
    capacity += static_cast<double>(server.capacity_bytes);
  }
  if (servers.size() < 2 || bytes == 0 || capacity == 0) return std::nan("");
  double worst = 0;
  for (const PlacedBytes& server : servers) {
    const double share = bytes * static_cast<double>(server.capacity_bytes) / capacity;
    worst = std::max(worst, 100 * (static_cast<double>(server.bytes) / share - 1));
  }
  return worst;
}

}  // namespace ems::bench
