#include "bench/elastic/elastic_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "bench/serve/http_exchange.h"
#include "common/bytes.h"
#include "common/clock.h"

namespace ems::bench {
namespace {

constexpr Duration kReadyTimeout = std::chrono::seconds(30);
constexpr Duration kMetricsTimeout = std::chrono::seconds(5);
constexpr size_t kMetricsBytesMax = 4 * kMiB;
constexpr uint32_t kHeartbeatsPerLease = 5;

// The value of the line that begins with `series`; 0 without one.
uint64_t ValueOf(std::string_view metrics, std::string_view series) {
  for (size_t begin = 0; begin < metrics.size();) {
    const size_t end = std::min(metrics.find('\n', begin), metrics.size());
    const std::string_view line = metrics.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(series) || line.size() <= series.size() || line[series.size()] != ' ')
      continue;
    double value = 0;
    std::from_chars(line.data() + series.size() + 1, line.data() + line.size(), value);
    return static_cast<uint64_t>(value);
  }
  return 0;
}

}  // namespace

ForwardCounters ForwardCountersOf(std::string_view metrics) {
  const auto keys = [&](std::string_view result) {
    return ValueOf(metrics, fmt::format("ems_server_forwards_total{{result=\"{}\"}}", result));
  };
  return {.hits = keys("hit"),
          .misses = keys("miss"),
          .refused = keys("refused"),
          .failed = keys("failed"),
          .bytes = ValueOf(metrics, "ems_server_forwarded_bytes_total") +
                   ValueOf(metrics, "ems_server_migrated_bytes_total")};
}

ForwardCounters CountedBetween(const CountersByServer& before, const CountersByServer& after) {
  ForwardCounters sum;
  for (const auto& [pid, now] : after) {
    const auto known = before.find(pid);
    const ForwardCounters then = known == before.end() ? ForwardCounters() : known->second;
    sum.hits += now.hits - then.hits;
    sum.misses += now.misses - then.misses;
    sum.refused += now.refused - then.refused;
    sum.failed += now.failed - then.failed;
    sum.bytes += now.bytes - then.bytes;
  }
  return sum;
}

Result<std::unique_ptr<ElasticCluster>> ElasticCluster::Start(ElasticClusterOptions options) {
  auto made = std::make_unique<ElasticCluster>(Passkey{}, std::move(options));
  EMS_ASSIGN_OR_RETURN(made->folder_, ScratchFolder::Make());
  const std::string& folder = made->folder_->path();
  const uint32_t lease_ms = made->options_.lease_ms;
  EMS_ASSIGN_OR_RETURN(
      made->controller_,
      BenchDaemon::StartReady(
          made->options_.programs, "mp-controller", folder,
          {fmt::format("data_dir={}/controller", folder), "listen=127.0.0.1:0",
           "http_listen=127.0.0.1:0", "damping_ms=0", fmt::format("lease_ms={}", lease_ms),
           fmt::format("heartbeat_ms={}", lease_ms / kHeartbeatsPerLease)},
          kReadyTimeout));
  return made;
}

Status ElasticCluster::StartServer(const std::string& name) {
  // A folder of its own, as its log and ready file are named after the program.
  const std::string folder = fmt::format("{}/{}", folder_->path(), name);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Error(StatusCode::kInternal, "no folder {}: {}", folder, error.message());
  EMS_ASSIGN_OR_RETURN(
      servers_[name],
      BenchDaemon::StartReady(
          options_.programs, "mp-server", folder,
          {"name=" + name, "controller=" + controller_address(), "data_dir=" + folder + "/data",
           "listen=127.0.0.1:0", "http_listen=127.0.0.1:0", "unix_path=" + folder + "/sock",
           fmt::format("dram.bytes={}", options_.dram_bytes)},
          kReadyTimeout));
  return OkStatus();
}

void ElasticCluster::KillServer(const std::string& name) {
  const auto server = servers_.find(name);
  if (server == servers_.end()) return;
  server->second->Kill();
  servers_.erase(server);
}

Result<CountersByServer> ElasticCluster::Counters() const {
  CountersByServer counters;
  for (const auto& entry : servers_) {
    const std::string& name = entry.first;
    const auto& server = entry.second;
    std::string text;
    const auto take = [&](std::string_view bytes) {
      if (text.size() + bytes.size() > kMetricsBytesMax)
        return Error(StatusCode::kResourceExhausted, "{}: its metrics have no end", name);
      text += bytes;
      return OkStatus();
    };
    const HttpAsk ask{.address = server->Field("http"), .path = "/metrics"};
    EMS_ASSIGN_OR_RETURN(const HttpAnswer answer,
                         ExchangeHttp(ask, Deadline::After(kMetricsTimeout), take));
    if (answer.status != 200)
      return Error(StatusCode::kUnavailable, "{} answers /metrics with {}", name, answer.status);
    counters[server->pid()] = ForwardCountersOf(text);
  }
  return counters;
}

}  // namespace ems::bench
