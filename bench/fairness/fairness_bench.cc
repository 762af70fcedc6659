#include "bench/fairness/fairness_bench.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/harness/bench_cluster.h"
#include "bench/harness/bench_server.h"
#include "bench/harness/cpu_placement.h"
#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/scratch_folder.h"
#include "bench/harness/trace_payload.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"
#include "proto/data_plane.h"

namespace ems::bench {
namespace {

constexpr uint64_t kGetBytes = 4 * kKiB;
constexpr uint64_t kPutBytes = kMiB;
constexpr uint64_t kPutKeys = 32;
constexpr uint64_t kWarmUp = 200;
constexpr Duration kTimeout = std::chrono::seconds(30);
constexpr Duration kConnectTimeout = std::chrono::seconds(2);
constexpr Duration kStartPatience = std::chrono::seconds(20);
constexpr std::string_view kServer = "server-1";

// Gives way to every other thread of its core that wants to run.
void RunWhenNobodyElseDoes() {
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_IDLE, &none);
}

// A caller that moves batches of large values until it is told to stop. Threading: one thread.
class BulkCaller final {
 public:
  // `writes`: Puts; otherwise Gets of what is there. The client has one connection.
  BulkCaller(std::unique_ptr<Client> client, const FairnessSettings& settings, bool writes)
      : client_(std::move(client)),
        writes_(writes),
        value_bytes_(settings.bulk_value_bytes),
        memory_(settings.bulk_keys * settings.bulk_value_bytes) {
    for (uint64_t i = 0; i < settings.bulk_keys; ++i)
      keys_.push_back(fmt::format("{}-{}", writes ? "written" : "read", i));
  }
  Status Store() { return Once(true); }
  void Start() {
    thread_ = Thread("bench-bulk", [this] {
      RunWhenNobodyElseDoes();
      while (!stop_.IsSet() && status_.ok()) {
        status_ = Once(writes_);
        moved_ += memory_.size();
      }
    });
  }
  uint64_t moved() const { return moved_; }
  // What went wrong.
  Status Stop() {
    stop_.Set();
    thread_.Join();
    return status_;
  }

 private:
  MutableBytes Value(size_t i) {
    return MutableBytes(memory_).subspan(i * value_bytes_, value_bytes_);
  }
  // Other content each time, as the same is not stored again.
  Status Put() {
    std::vector<PutItem> items;
    ++version_;
    for (size_t i = 0; i < keys_.size(); ++i) {
      std::ranges::copy(wire::RawBytes(version_), Value(i).begin());
      items.push_back({.key = keys_[i], .value = ConstBytes(Value(i))});
    }
    for (Status& status : client_->MultiPut(items, {.overwrite = true, .timeout = kTimeout}))
      EMS_RETURN_IF_ERROR(std::move(status));
    return OkStatus();
  }
  Status Get() {
    std::vector<GetItem> items;
    for (size_t i = 0; i < keys_.size(); ++i)
      items.push_back({.key = keys_[i], .into = MutableBuffers(Value(i))});
    for (const auto& got : client_->MultiGet(items, {.timeout = kTimeout}))
      EMS_RETURN_IF_ERROR(got.status());
    return OkStatus();
  }
  Status Once(bool writes) { return writes ? Put() : Get(); }

  const std::unique_ptr<Client> client_;
  const bool writes_;
  const uint64_t value_bytes_;
  std::vector<std::byte> memory_;
  std::vector<std::string> keys_;
  uint64_t version_ = 0;
  std::atomic<uint64_t> moved_{0};
  StopFlag stop_;
  Status status_;
  Thread thread_;  // ends first
};

// Threading: one thread.
class Rig final {
 public:
  Rig(const FairnessSettings& settings, const BenchServer& server)
      : settings_(settings), server_(server), small_(kGetBytes), large_(kPutBytes) {}

  Result<FairnessResult> Run() {
    EMS_ASSIGN_OR_RETURN(client_, Connect());
    FillBlock(1, small_);
    FillBlock(2, large_);
    EMS_RETURN_IF_ERROR(client_->Put("small", ConstBytes(small_)));
    EMS_RETURN_IF_ERROR(MeasureGets());
    EMS_RETURN_IF_ERROR(MeasurePuts());
    return std::move(result_);
  }

 private:
  Result<std::unique_ptr<Client>> Connect() const {
    ClientOptions options;
    options.transport = TransportChoice::kTcp;
    options.connections_per_server_max = 1;
    return server_.Connect(std::move(options));
  }

  Status MeasureGets() {
    EMS_RETURN_IF_ERROR(Gets(kWarmUp, nullptr));
    EMS_RETURN_IF_ERROR(Gets(settings_.gets, &result_.gets.quiet));
    EMS_ASSIGN_OR_RETURN(auto reads, Connect());
    EMS_ASSIGN_OR_RETURN(auto writes, Connect());
    BulkCaller reader(std::move(reads), settings_, false);
    BulkCaller writer(std::move(writes), settings_, true);
    EMS_RETURN_IF_ERROR(reader.Store());
    reader.Start();
    writer.Start();
    const Deadline deadline = Deadline::After(kStartPatience);
    while ((reader.moved() == 0 || writer.moved() == 0) && !deadline.Passed())
      StopFlag().WaitFor(std::chrono::milliseconds(10));
    const uint64_t read_before = reader.moved(), written_before = writer.moved();
    const TimePoint begin = Clock::System().Now();
    const Status measured = Gets(settings_.gets, &result_.gets.busy);
    result_.bulk_seconds = SecondsSince(begin);
    result_.bulk_read_bytes = reader.moved() - read_before;
    result_.bulk_written_bytes = writer.moved() - written_before;
    EMS_RETURN_IF_ERROR(Prefixed(reader.Stop(), "the bulk reader"));
    EMS_RETURN_IF_ERROR(Prefixed(writer.Stop(), "the bulk writer"));
    return measured;
  }
  Status Gets(uint64_t count, LatencyRecorder* latencies) {
    return Calls(count, latencies, [this](uint64_t) {
      return client_->Get("small", MutableBuffers(MutableBytes(small_)), {.timeout = kTimeout})
          .status();
    });
  }

  Status MeasurePuts() {
    EMS_RETURN_IF_ERROR(Puts(kPutKeys, nullptr));
    EMS_RETURN_IF_ERROR(Puts(settings_.puts, &result_.puts.quiet));
    EMS_ASSIGN_OR_RETURN(const uint64_t evicted, Evicted());
    EMS_ASSIGN_OR_RETURN(const std::vector<fabric::Fd> flood, Announce());
    EMS_RETURN_IF_ERROR(Puts(settings_.puts, &result_.puts.busy));
    EMS_ASSIGN_OR_RETURN(const uint64_t evicted_then, Evicted());
    result_.evicted_objects = evicted_then - evicted;
    return OkStatus();
  }
  Status Puts(uint64_t count, LatencyRecorder* latencies) {
    return Calls(count, latencies, [this](uint64_t i) {
      std::ranges::copy(wire::RawBytes(++version_), large_.begin());
      return client_->Put(fmt::format("large-{}", i % kPutKeys), ConstBytes(large_),
                          {.overwrite = true, .timeout = kTimeout});
    });
  }
  Result<uint64_t> Evicted() {
    return NamespaceBytes(client_.get(), std::string(kServer), client_->name_space().name,
                          "evicted_objects");
  }
  // Connections that have sent the header and the key of a Put, and none of its value.
  Result<std::vector<fabric::Fd>> Announce() {
    const std::string at = client_->views().view()->nodes().at(0).data_address;
    EMS_ASSIGN_OR_RETURN(const fabric::Address address, fabric::ParseAddress(at));
    wire::FrameHeader header;
    header.op = wire::Op::kPut;
    header.namespace_id = client_->name_space().ref.id.value();
    header.namespace_generation = client_->name_space().ref.generation;
    header.view = client_->views().view()->version().packed();
    header.body_bytes = settings_.announced_bytes + wire::kTrailerBytes;
    std::vector<fabric::Fd> flood;
    for (uint64_t i = 0; i < settings_.announced; ++i) {
      const std::string key = fmt::format("announced-{}", i);
      header.key_bytes = static_cast<uint16_t>(key.size());
      wire::SealRequest(AsBytes(key), &header);
      std::string frame(AsText(wire::RawBytes(header)));
      frame += key;
      EMS_ASSIGN_OR_RETURN(fabric::Fd fd, fabric::Connect(address, kConnectTimeout));
      if (::send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(frame.size()))
        return Error(StatusCode::kUnavailable, "the server takes no more headers");
      flood.push_back(std::move(fd));
    }
    return flood;
  }

  static Status Calls(uint64_t count, LatencyRecorder* latencies,
                      const std::function<Status(uint64_t)>& call) {
    for (uint64_t i = 0; i < count; ++i) {
      if (Interrupted()) return Interruption();
      const TimePoint begin = Clock::System().Now();
      EMS_RETURN_IF_ERROR(call(i));
      if (latencies != nullptr) latencies->Record(Clock::System().Now() - begin);
    }
    return OkStatus();
  }

  const FairnessSettings settings_;
  const BenchServer& server_;
  std::unique_ptr<Client> client_;
  std::vector<std::byte> small_, large_;
  uint64_t version_ = 0;
  FairnessResult result_;
};

}  // namespace

Result<FairnessResult> RunFairnessBench(const FairnessSettings& settings) {
  EMS_ASSIGN_OR_RETURN(const auto folder, ScratchFolder::Make());
  const uint64_t values = 2 * settings.bulk_keys * settings.bulk_value_bytes + kPutKeys * kPutBytes;
  EMS_ASSIGN_OR_RETURN(const auto server,
                       BenchServer::Start({.folder = folder->path(),
                                           .programs = settings.programs,
                                           .dram_bytes = std::max(3 * values, 256 * kMiB),
                                           .settings = {"network.io_threads=1"}}));
  CpuPlacement placement;
  EMS_RETURN_IF_ERROR(placement.Apart(std::array{server->pid()}));
  return Rig(settings, *server).Run();
}

}  // namespace ems::bench
