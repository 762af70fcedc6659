#pragma once
// What `emsctl doctor` looks at on the network: who answers, who may come, and what others say.
//
// Bound: each check that asks anybody takes its time from a deadline.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "tools/emsctl/doctor/finding.h"
#include "tools/emsctl/doctor/host_checks.h"

namespace ems::emsctl {

// That somebody listens at a Unix socket, and that this user may connect.
Finding CheckUnixSocket(const std::string& path, Duration timeout);

// One server as it was found. Of what it did not say nothing is held against it.
struct ServerSeen {
  std::string name;
  std::string address;                  // of its data plane
  Status reached = OkStatus();          // connecting to that, and its answer
  Duration took{};                      // connecting
  std::string version{};                // empty: it did not say
  std::optional<int64_t> skew_ms = {};  // its clock less ours, to within `took`
};

// One line for all that answer, and one for each that does not, 16 at most.
Findings CheckServers(std::span<const ServerSeen> servers);
// That controller and servers have the version of this emsctl.
Finding CheckVersions(std::string_view own, std::string_view controller,
                      std::span<const ServerSeen> servers);
// Clocks decide nothing in EMS; a log is read by them, and object stores refuse requests of a clock
// that is far off. `controller_ms`: as ServerSeen::skew_ms.
Finding CheckClocks(std::optional<int64_t> controller_ms, std::span<const ServerSeen> servers);

// A port of a daemon of this host, and what it is for.
struct OwnPort {
  std::string what;     // "data plane of a"
  std::string address;  // host:port as it is told
};
// That none is open to every network: nobody has to show who they are.
Finding CheckExposure(std::span<const OwnPort> ports, std::span<const Listener> listeners);

}  // namespace ems::emsctl
