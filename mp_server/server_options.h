#pragma once
// The options of a server's parts, made from its configuration, and the configuration's checks.
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "fabric/rpc/rpc_options.h"
#include "mp_server/memory/pool_size.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/restart/in_place.h"
#include "mp_server/ssd/ssd_tier.h"

namespace ems::config {
class DramConfig;
class ServerConfig;
}  // namespace ems::config

namespace ems::server {

// Segments of whole huge pages; dram.bytes is at least one.
// `nodes`: see ChooseNumaNodes.
SegmentPool::Options PoolOptions(const config::DramConfig& dram,
                                 const fabric::NumaNodes& nodes = {});
// How large it is kept, without pool and callbacks.
PoolSize::Options PoolSizeOptions(const config::DramConfig& dram);
// The NUMA nodes that the pool is to be spread over, and logs them; none: the kernel chooses.
fabric::NumaNodes ChooseNumaNodes(const config::DramConfig& dram);
// Without lineage and observer.
ssd::TierOptions TierOptions(const config::ServerConfig& config);
// At most as large as the machine has room for now, if it may be smaller later.
SegmentPool::Options FirstPool(const config::DramConfig& dram, const InPlace& in_place);
InPlace::Options InPlaceOptions(const config::ServerConfig& config, std::unique_ptr<FdStore> fds);
// Null: the configuration wants none. `observer` (null: none) must outlive it.
std::unique_ptr<ssd::SsdTier> OpenTier(const config::ServerConfig& config, uint64_t lineage,
                                       ssd::StoredObserver* observer);
// Raises the limit of file descriptors, and says in the log if it is still too low for `regions` of
// the SSD tier and all connections: then there are fewer of those.
fabric::RpcServerOptions RpcOptions(const config::ServerConfig& config, uint64_t regions);
// Numbers between blanks.   Errors: kInvalidArgument  a word that is none
Result<std::vector<uid_t>> ParseUids(const std::string& text);
// What each key allows and all together do not.   Errors: kInvalidArgument
Status CheckConfig(const config::ServerConfig& config);
// What the configuration wants of this machine and it has not: see common/machine_check.h.
std::vector<Status> CheckMachine(const config::ServerConfig& config);

}  // namespace ems::server
