// emsctl doctor: looks at this host and at the cluster, one line a check.
//
// Invariant: changes nothing and hangs on nothing: what may block has a thread of its own, which is
// left where it is when the time is over. Bound: --timeout a check of the host; four times that for
// the cluster, of whose servers kServersMax are asked.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/controller_client.h"
#include "common/command_line.h"
#include "common/config.h"
#include "common/host_port.h"
#include "common/thread_pool.h"
#include "common/version.h"
#include "fabric/net/socket.h"
#include "mp_sdk/client.h"
#include "proto/config.pb.h"
#include "proto/controller.pb.h"
#include "tools/emsctl/cluster_text.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/doctor/disk_check.h"
#include "tools/emsctl/doctor/finding.h"
#include "tools/emsctl/doctor/host_checks.h"
#include "tools/emsctl/doctor/network_checks.h"
#include "tools/emsctl/doctor/timed_checks.h"
#include "tools/emsctl/output.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr const char* kUsualConfig = "/etc/ems/server.yaml";
constexpr size_t kServersMax = 4096;
constexpr size_t kAskingThreads = 16;

struct Flags {
  std::string config;
  std::vector<std::string> overrides;
  bool host_only = false;
};

// What is to be compared with: a file, or the defaults of all options.
struct Wanted {
  config::ServerConfig config;
  bool from_file = false;
};

Status LoadDefaults(const std::vector<std::string>& overrides, config::ServerConfig* config) {
  return config::LoadText("{name: doctor, data_dir: /}", "defaults", overrides, config);
}

// A file that is there and does not load is a finding: the defaults are compared with, then.
Result<Wanted> Configuration(const Flags& flags, Finding* finding) {
  Wanted wanted;
  std::string file = flags.config;
  if (file.empty() && ::access(kUsualConfig, R_OK) == 0) file = kUsualConfig;
  wanted.from_file = !file.empty();
  *finding = {.check = "configuration",
              .found = wanted.from_file ? file : fmt::format("no {}, so defaults", kUsualConfig)};
  Status loaded = wanted.from_file ? config::Load(file, flags.overrides, &wanted.config)
                                   : LoadDefaults(flags.overrides, &wanted.config);
  if (!loaded.ok() && wanted.from_file && ::access(file.c_str(), R_OK) == 0) {
    finding->level = Level::kFail;
    finding->found = std::string(Message(loaded));
    finding->mend = fmt::format("mp-server --config {} --check-config", file);
    wanted = {};
    loaded = LoadDefaults({}, &wanted.config);
  }
  if (!loaded.ok()) return loaded;
  return wanted;
}

HostNeeds NeedsOf(const Wanted& wanted) {
  // A connection has one descriptor, a session four, a segment two, a region one.
  constexpr uint64_t kOwn = 100, kSegmentBytes = 130 * kMiB, kSegmentsMax = 1024,
                     kRegionsMax = 4096;
  const config::ServerConfig& config = wanted.config;
  const uint64_t segments = std::min(config.dram().bytes() / kSegmentBytes + 7, kSegmentsMax);
  HostNeeds needs;
  needs.dram_bytes = wanted.from_file ? config.dram().bytes() : 0;
  needs.huge_pages = config.dram().huge_pages();
  needs.ssd = config.ssd().capacity_bytes() > 0;
  needs.descriptors = kOwn + config.network().connections_max() +
                      4ULL * config.shm().sessions_max() + 2 * segments +
                      (needs.ssd ? kRegionsMax : 0);
  return needs;
}

Limit LimitOf(__rlimit_resource resource) {
  rlimit limit{};
  (void)::getrlimit(resource, &limit);
  const auto number = [](rlim_t value) { return value == RLIM_INFINITY ? kUnlimited : value; };
  return {.soft = number(limit.rlim_cur), .hard = number(limit.rlim_max)};
}

void CheckHost(const Wanted& wanted, const Context& context, TimedChecks* checks) {
  const HostPlaces places;
  const HostNeeds needs = NeedsOf(wanted);
  checks->Add(CheckHugePages(places, needs));
  checks->Add(CheckTransparentPages(places));
  checks->Add(CheckMemory(places, needs));
  checks->Add(CheckSwap(places));
  checks->Add(CheckNuma(places));
  checks->Run("memfd seals", CheckSeals);
  const std::vector<DaemonLimit> daemons = DaemonLimits(places);
  for (const DaemonLimit& one : daemons)
    checks->Add(CheckDescriptors(one.whose, one.descriptors, needs));
  if (daemons.empty()) checks->Add(CheckDescriptors("this shell", LimitOf(RLIMIT_NOFILE), needs));
  checks->Add(CheckLockedMemory(places, LimitOf(RLIMIT_MEMLOCK), needs));
  checks->Add(CheckIoUring(places, needs));
  if (!wanted.from_file) return;
  const config::ServerConfig& config = wanted.config;
  const DiskNeeds data{.key = "data_dir", .folder = config.data_dir()};
  checks->Run("disk of data_dir", [data] { return CheckDisk(data); });
  if (needs.ssd) {
    const std::string path = config.ssd().path();
    const DiskNeeds ssd{.key = "ssd.path",
                        .folder = path.empty() ? config.data_dir() + "/ssd" : path,
                        .bytes = config.ssd().capacity_bytes(),
                        .direct_io = true};
    checks->Run("disk of ssd.path", [ssd] { return CheckDisk(ssd); });
  }
  if (!config.unix_path().empty())
    checks->Add(CheckUnixSocket(config.unix_path(), context.timeout()));
}

int64_t UnixMs() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What the controller said, and when.
struct Answers {
  v1::ListNodesReply nodes;
  std::optional<int64_t> skew_ms;
  ViewCache cache;
};

// Their clock less ours, at the middle of the time that the question took.
int64_t Skew(int64_t theirs, int64_t asked, int64_t answered) {
  return theirs - (asked + (answered - asked) / 2);
}

bool AskController(const Context& context, Deadline deadline, Answers* answers,
                   TimedChecks* checks) {
  ControllerClient controller(context.controller, "emsctl", context.joined.get());
  const TimePoint begin = Clock::System().Now();
  const int64_t asked = UnixMs();
  const Status status = controller.ListNodes(&answers->nodes, deadline);
  if (!status.ok()) {
    checks->Add({.level = Level::kFail,
                 .check = "controller",
                 .found = std::string(Message(status)),
                 .mend = "is it running, and is --controller its address? --host looks at this "
                         "host alone"});
    return false;
  }
  answers->skew_ms = Skew(answers->nodes.now_unix_ms(), asked, UnixMs());
  checks->Add(
      {.check = "controller",
       .found = fmt::format(
           "{} answers in {:.1f} ms", context.controller,
           std::chrono::duration<double, std::milli>(Clock::System().Now() - begin).count())});
  (void)controller.Refresh(&answers->cache, deadline);  // what lacks, `cluster` says
  return true;
}

void CheckHealth(Answers* answers, TimedChecks* checks) {
  const ViewCache::View view = answers->cache.view();
  const ViewCache::Namespaces namespaces = answers->cache.namespaces();
  const ClusterSnapshot snapshot{
      .view = view.get(), .nodes = &answers->nodes, .namespaces = namespaces.get()};
  const Json status = StatusJson(snapshot);
  Finding finding{.check = "cluster", .found = status["health"].get<std::string>()};
  if (HealthOf(snapshot) != Health::kOk)
    finding.level = NeedsAnOperator(snapshot) ? Level::kFail : Level::kWarn;
  for (const std::string& line : AdviceFor(snapshot)) {
    finding.mend += (finding.mend.empty() ? "" : " ") + line;
    finding.level = std::max(finding.level, Level::kWarn);
  }
  checks->Add(std::move(finding));
}

// A process that stands still has a port that takes connections.
Status AskServer(Client* client, Deadline deadline, ServerSeen* server) {
  const int64_t asked = UnixMs();
  const Result<std::string> stats = client->ServerStats(server->name, deadline.Remaining());
  const int64_t answered = UnixMs();
  if (!stats.ok()) return stats.status();
  const Json json = Json::parse(*stats, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return OkStatus();
  server->version = json.value("version", "");
  const auto theirs = json.find("unix_ms");
  if (theirs != json.end() && theirs->is_number_integer())
    server->skew_ms = Skew(theirs->get<int64_t>(), asked, answered);
  return OkStatus();
}

void SeeServer(Client* client, Duration timeout, Deadline deadline, ServerSeen* server) {
  const Result<fabric::Address> address = fabric::ParseAddress(server->address);
  const TimePoint begin = Clock::System().Now();
  server->reached = [&] {
    if (deadline.Passed()) return Error(StatusCode::kDeadlineExceeded, "not asked: out of time");
    if (!address.ok()) return address.status();
    return fabric::Connect(*address, std::min(timeout, deadline.Remaining())).status();
  }();
  server->took = Clock::System().Now() - begin;
  if (!server->reached.ok() || client == nullptr) return;
  const Deadline until = Deadline::After(std::min(timeout, deadline.Remaining()));
  server->reached = AskServer(client, until, server);
}

std::vector<ServerSeen> SeeServers(const Context& context, Deadline deadline, Answers* answers) {
  std::vector<ServerSeen> servers;
  for (const v1::NodeStatus& one : answers->nodes.nodes()) {
    if (one.node().state() != v1::NODE_LIVE || servers.size() == kServersMax) continue;
    servers.push_back({.name = one.node().name(), .address = one.node().data_address()});
  }
  std::unique_ptr<Client> client;
  const auto namespaces = answers->cache.namespaces();
  if (!servers.empty() && !namespaces->by_id.empty()) {
    ClientOptions options;
    options.controller = context.controller;
    options.name_space = namespaces->by_id.begin()->second.name;
    options.start_timeout = std::min(context.timeout(), deadline.Remaining());
    if (auto connected = Client::Connect(options); connected.ok()) client = std::move(*connected);
  }
  {
    ThreadPool pool("doctor", kAskingThreads, kServersMax);
    for (ServerSeen& one : servers) {
      (void)pool.TrySubmit(
          [&, server = &one] { SeeServer(client.get(), context.timeout(), deadline, server); });
    }
  }
  return servers;
}

void CheckOwnPorts(const Context& context, const Answers& answers, const std::string& configured,
                   TimedChecks* checks) {
  std::vector<OwnPort> ports;
  for (const std::string& controller : SplitAddresses(context.controller))
    ports.push_back({.what = "controller", .address = controller});
  const std::string host = fabric::HostId();
  for (const v1::NodeStatus& one : answers.nodes.nodes()) {
    const v1::Node& node = one.node();
    if (node.state() != v1::NODE_LIVE || node.host_id() != host) continue;
    ports.push_back({.what = "data plane of " + node.name(), .address = node.data_address()});
    if (!node.http_address().empty())
      ports.push_back({.what = "http of " + node.name(), .address = node.http_address()});
    if (!node.unix_path().empty() && node.unix_path() != configured)
      checks->Add(CheckUnixSocket(node.unix_path(), context.timeout()));
  }
  checks->Add(CheckExposure(ports, Listeners({})));
}

void CheckCluster(const Context& context, const std::string& configured, TimedChecks* checks) {
  const Deadline deadline = Deadline::After(4 * context.timeout());
  Answers answers;
  if (!AskController(context, context.deadline(), &answers, checks)) return;
  CheckHealth(&answers, checks);
  const std::vector<ServerSeen> servers = SeeServers(context, deadline, &answers);
  checks->AddAll(CheckServers(servers));
  checks->Add(CheckVersions(Version(), answers.nodes.version(), servers));
  checks->Add(CheckClocks(answers.skew_ms, servers));
  CheckOwnPorts(context, answers, configured, checks);
}

int RunDoctor(const Context& context, const Flags& flags) {
  TimedChecks checks(context.timeout());
  Finding from;
  const Result<Wanted> wanted = Configuration(flags, &from);
  if (!wanted.ok()) return ComplainOfUsage(context, Message(wanted.status()));
  checks.Add(std::move(from));
  CheckHost(*wanted, context, &checks);
  const std::string configured = wanted->from_file ? wanted->config.unix_path() : "";
  if (!flags.host_only) CheckCluster(context, configured, &checks);
  const Findings& found = checks.findings();
  const int shown = Show(context, FindingsJson(found), FindingsText(found));
  const int exit_code = WorstOf(found) == Level::kFail ? kExitFailed : shown;
  if (checks.stuck()) std::_Exit(exit_code);  // a thread that hangs cannot be waited for
  return exit_code;
}

}  // namespace

void AddDoctorCommand(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* doctor = program->AddCommand(
      "doctor", "Look at this host and at the cluster: what is wrong, and how to mend it");
  doctor->AddOption("--config", &flags->config,
                    fmt::format("Configuration of the server of this host; {} if it exists and "
                                "nothing else is said",
                                kUsualConfig));
  doctor->AddOption("--set", &flags->overrides, "Override one option of it, as mp-server takes it");
  doctor->AddFlag("--host", &flags->host_only, "This host alone: ask no controller");
  doctor->SetFooter(
      "One line a check: OK, WARN or FAIL, what was found, and how to mend it. Exits 1 when "
      "something failed. Nothing is changed; direct I/O is tried with a file of 4 KiB that goes at "
      "once. No check takes longer than --timeout, those of the cluster together four times that.");
  doctor->SetRun([=] { return RunDoctor(*context, *flags); });
}

}  // namespace ems::emsctl
