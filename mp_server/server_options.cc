#include "mp_server/server_options.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "common/config.h"
#include "common/host_port.h"
#include "common/logging.h"
#include "common/machine_check.h"
#include "common/parse_number.h"
#include "mp_server/descriptor_budget.h"
#include "proto/config.pb.h"

namespace ems::server {
namespace {

constexpr uint64_t kIndexMemoryLeast = 64 * kMiB;
// What elastic memory leaves to others unless the configuration says how much.
constexpr uint64_t kKeepFreeShare = 20;
constexpr uint64_t kKeepFreeLeast = 256 * kMiB;
constexpr uint64_t kKeepFreeMost = 4 * kGiB;

HugePages HugePagesOf(const std::string& word) {
  if (word == "require") return HugePages::kRequire;
  return word == "off" ? HugePages::kOff : HugePages::kTry;
}

// Segments are made of whole huge pages; dram.bytes is at least one.
uint64_t RoundDown(uint64_t bytes) { return bytes / (2 * kMiB) * (2 * kMiB); }

// Of what `dram_bytes` leaves of the machine's memory, a half; the rest is for others.
uint64_t IndexMemoryBytes(uint64_t dram_bytes) {
  const uint64_t memory = MachineMemoryBytes();
  return std::max((memory - std::min(memory, dram_bytes)) / 2, kIndexMemoryLeast);
}

// How many connections the process has descriptors for.
uint32_t ConnectionsMax(const config::ServerConfig& config, uint64_t regions) {
  const SegmentPool::Options pool = PoolOptions(config.dram());
  const DescriptorBudget budget =
      PlanDescriptors(RaiseDescriptorLimit(),
                      kDescriptorsBase + 2 * (pool.bytes / pool.segment_bytes) + regions +
                          (regions > 0 ? kDescriptorsOfIndex : 0),
                      config.network().connections_max(), config.shm().sessions_max());
  if (budget.wanted > budget.limit) {
    EMS_LOG(kWarn, "mp_server",
            "the limit of {} file descriptors is less than the {} that the configuration allows "
            "for: connections are limited to {}; raise it (LimitNOFILE, ulimit -Hn)",
            budget.limit, budget.wanted, budget.connections_max);
  }
  return budget.connections_max;
}

}  // namespace

SegmentPool::Options PoolOptions(const config::DramConfig& dram, const fabric::NumaNodes& nodes) {
  SegmentPool::Options options;
  options.bytes = RoundDown(dram.bytes());
  options.segment_bytes =
      dram.segment_bytes() == 0
          ? SegmentPool::DefaultSegmentBytes(options.bytes)
          : std::max(2 * kMiB, RoundDown(std::min(dram.segment_bytes(), dram.bytes())));
  options.huge_pages = HugePagesOf(dram.huge_pages());
  if (!nodes.empty()) {
    options.create = [nodes](uint64_t bytes, HugePages huge_pages) {
      return fabric::ShmSegment::CreateOn(nodes, bytes, huge_pages);
    };
  }
  return options;
}

PoolSize::Options PoolSizeOptions(const config::DramConfig& dram) {
  const config::ElasticConfig& wanted = dram.elastic();
  const SegmentPool::Options pool = PoolOptions(dram);
  PoolSize::Options options;
  options.bytes = pool.bytes;
  options.is_elastic = wanted.min_bytes() > 0;
  if (!options.is_elastic) return options;
  options.elastic.bytes_min = std::max(RoundDown(wanted.min_bytes()), pool.segment_bytes);
  options.elastic.keep_free_bytes = wanted.keep_free_bytes();
  options.elastic.step_bytes = pool.segment_bytes;
  options.elastic.grow_after = std::chrono::milliseconds(wanted.grow_after_ms());
  if (wanted.keep_free_bytes() == 0) {
    const Result<MemoryReading> machine = HostMemory().Read();
    const uint64_t limit = machine.ok() ? machine->limit_bytes : MachineMemoryBytes();
    options.elastic.keep_free_bytes =
        std::clamp(limit / kKeepFreeShare, kKeepFreeLeast, kKeepFreeMost);
  }
  return options;
}

fabric::NumaNodes ChooseNumaNodes(const config::DramConfig& dram) {
  if (dram.numa() == "none") return {};
  const Result<fabric::NumaNodes> nodes = fabric::UsableNumaNodes();
  if (!nodes.ok()) {
    EMS_LOG(kWarn, "mp_server", "memory is on NUMA nodes that the kernel chooses reason=\"{}\"",
            Message(nodes.status()));
    return {};
  }
  EMS_LOG(kInfo, "mp_server", "memory is on NUMA nodes nodes={}",
          nodes->empty() ? "as the process is bound" : fabric::NodesText(*nodes));
  return nodes->size() > 1 ? *nodes : fabric::NumaNodes();
}

ssd::TierOptions TierOptions(const config::ServerConfig& config) {
  const config::SsdConfig& wanted = config.ssd();
  ssd::TierOptions options;
  options.folder = wanted.path().empty() ? config.data_dir() + "/ssd" : wanted.path();
  options.capacity_bytes = wanted.capacity_bytes();
  options.region_bytes = wanted.region_bytes();
  options.dirty_bytes_max = wanted.dirty_bytes_max() != 0
                                ? wanted.dirty_bytes_max()
                                : std::min(config.dram().bytes() / 10, kGiB);
  options.index_memory_bytes = wanted.index_memory_bytes() != 0
                                   ? wanted.index_memory_bytes()
                                   : IndexMemoryBytes(config.dram().bytes());
  options.overwrite_quiet = std::chrono::milliseconds(wanted.overwrite_quiet_ms());
  options.reads_max = wanted.reads_max();
  options.scrub_bytes_per_s = wanted.scrub_bytes_per_s();
  options.io = wanted.io() == "threads"    ? ssd::IoKind::kThreads
               : wanted.io() == "io_uring" ? ssd::IoKind::kRing
                                           : ssd::IoKind::kAuto;
  return options;
}

SegmentPool::Options FirstPool(const config::DramConfig& dram, const InPlace& in_place) {
  const fabric::NumaNodes nodes = ChooseNumaNodes(dram);
  SegmentPool::Options options = PoolOptions(dram, nodes);
  in_place.Prepare(nodes, &options);
  // What was handed over is there already.
  const uint64_t room = PoolSize::FirstBytes(PoolSizeOptions(dram)) + options.adopted_bytes;
  options.bytes = std::min(options.bytes, room);
  return options;
}

InPlace::Options InPlaceOptions(const config::ServerConfig& config, std::unique_ptr<FdStore> fds) {
  InPlace::Options options;
  options.fds = std::move(fds);
  options.wanted = config.restart().in_place();
  if (config.ssd().capacity_bytes() > 0) options.tier_folder = TierOptions(config).folder;
  options.huge_pages = PoolOptions(config.dram()).huge_pages;
  return options;
}

std::unique_ptr<ssd::SsdTier> OpenTier(const config::ServerConfig& config, uint64_t lineage,
                                       ssd::StoredObserver* observer) {
  if (config.ssd().capacity_bytes() == 0) return nullptr;
  ssd::TierOptions options = TierOptions(config);
  options.lineage = lineage;
  options.observer = observer;
  return ssd::SsdTier::Open(options);
}

fabric::RpcServerOptions RpcOptions(const config::ServerConfig& config, uint64_t regions) {
  const config::NetworkConfig& network = config.network();
  fabric::RpcServerOptions options;
  options.listen = config.listen();
  options.unix_path = config.unix_path();
  options.unix_mode = config::ParseMode(config.unix_mode()).value_or(0);  // checked by Start
  options.io_threads = network.io_threads();
  options.connections_max = ConnectionsMax(config, regions);
  options.header_timeout = std::chrono::milliseconds(network.header_timeout_ms());
  options.transfer_timeout = std::chrono::milliseconds(network.transfer_timeout_ms());
  options.idle_timeout = std::chrono::milliseconds(network.idle_timeout_ms());
  options.value_bytes_max = network.value_bytes_max();
  return options;
}

Result<std::vector<uid_t>> ParseUids(const std::string& text) {
  std::vector<uid_t> uids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto uid = ParseNumber<uid_t>(word);
    if (!uid)
      return Error(StatusCode::kInvalidArgument,
                   "shm.uids: \"{}\" is not a user's number; write what `id -u NAME` prints", word);
    uids.push_back(*uid);
  }
  return uids;
}

Status CheckConfig(const config::ServerConfig& config) {
  if (config.dram().elastic().min_bytes() > config.dram().bytes()) {
    return Error(
        StatusCode::kInvalidArgument,
        "dram.elastic.min_bytes {} is above dram.bytes {}, which is the most that the pool "
        "grows to",
        config.dram().elastic().min_bytes(), config.dram().bytes());
  }
  if (config.dram().low_watermark() > config.dram().high_watermark()) {
    return Error(StatusCode::kInvalidArgument,
                 "dram.low_watermark {} is above dram.high_watermark {}",
                 config.dram().low_watermark(), config.dram().high_watermark());
  }
  EMS_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config.listen()));
  if (config.advertise().empty() && (listen.host == "0.0.0.0" || listen.host == "::")) {
    return Error(StatusCode::kInvalidArgument,
                 "listen {} is every address of this machine: set advertise to the one that "
                 "clients are to use",
                 config.listen());
  }
  const config::KvEventsConfig& events = config.kv_events();
  if (events.listen().empty() && !events.replay_listen().empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "kv_events.replay_listen is {} but kv_events.listen is empty: nothing would be "
                 "published; set both or neither",
                 events.replay_listen());
  }
  EMS_RETURN_IF_ERROR(ParseUids(config.shm().uids()).status());
  return Prefixed(config::ParseMode(config.unix_mode()).status(), "unix_mode");
}

std::vector<Status> CheckMachine(const config::ServerConfig& config) {
  std::vector<Status> checks = {CheckFolder("data_dir", config.data_dir()),
                                CheckMemoryBytes("dram.bytes", config.dram().bytes())};
  if (config.ssd().capacity_bytes() > 0) {
    const std::string folder = TierOptions(config).folder;
    if (!config.ssd().path().empty()) checks.push_back(CheckFolder("ssd.path", folder));
    checks.push_back(CheckDiskBytes("ssd.capacity_bytes", config.ssd().capacity_bytes(), folder));
  }
  return Problems(std::move(checks));
}

}  // namespace ems::server
