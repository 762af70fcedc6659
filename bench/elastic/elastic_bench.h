#pragma once
// What a change of membership costs in hits: a trace at a steady rate against a cluster that gets,
// stops or loses a server meanwhile, beside the same requests on one that is left alone.
//
// Bound: memory of the trace, and concurrency × blocks of the longest request × block bytes; a run
// ends with the last request.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/elastic/elastic_cluster.h"
#include "bench/elastic/elastic_figures.h"
#include "bench/trace/trace_replay.h"
#include "cluster/view_cache.h"
#include "common/status.h"

namespace ems::bench {

// What happens to the servers while requests go on.
enum class Scenario { kUndisturbed, kJoin, kStop, kKill };
// "undisturbed", "join", "stop", "kill".
const char* NameOf(Scenario scenario);

struct ElasticSettings {
  std::string programs;  // as FindDaemon takes it
  uint64_t servers = 3;
  uint64_t dram_bytes = 0;      // of each
  uint64_t capacity_bytes = 0;  // of all together, of objects: the namespace's quota by replicas
  uint32_t replicas = 1;        // of each object
  uint64_t block_bytes = 8 * kKiB;
  uint64_t rate = 100;             // requests a second
  uint64_t warm_requests = 1500;   // as fast as possible, in front
  uint64_t quiet_requests = 500;   // at the rate, before the first change
  uint64_t window_requests = 700;  // after each change
  uint32_t concurrency = 4;
  uint32_t lease_ms = 1500;

  // In front of the first change and after each. What is undisturbed has as many as the longest.
  uint64_t timed_requests(Scenario scenario) const {
    return quiet_requests + (scenario == Scenario::kJoin ? 1 : 2) * window_requests;
  }
};

struct Change {
  std::string name;    // "join", "stop", "return after stop", …
  std::string server;  // whom it is about
  bool comes = false;  // the server; it goes otherwise
  bool killed = false;
  Window window{};           // requests from the change on, among the timed ones
  Duration at{0};            // since the timed ones began
  Duration took{0};          // until the process was ready, or had ended
  Duration in_view{-1};      // until the client had the view with it; negative: never in the window
  ViewCache::View before{};  // the client's views: when it began, and at the window's end
  ViewCache::View after{};
  std::map<std::string, uint64_t> held{};  // value bytes by server, when it began
  ForwardCounters forwarded{};             // in the window, by all servers
};

struct ElasticRun {
  Scenario scenario = Scenario::kUndisturbed;
  ReplayResult warm, timed;
  std::vector<Change> changes;
  NamespaceId name_space;  // its keys' slots follow from it
};

// One scenario on a cluster of its own. `trace` has warm_requests + timed_requests(scenario)
// requests at least.
// Errors: of a daemon that does not start; kCancelled
Result<ElasticRun> RunElastic(Scenario scenario, const Trace& trace,
                              const ElasticSettings& settings);

// Where the ideal LRU loses what the servers of `run` lost: those that stopped or were killed.
// Nothing where each object is on several servers.
std::vector<Loss> LossesOf(const ElasticRun& run, const ElasticSettings& settings);

}  // namespace ems::bench
