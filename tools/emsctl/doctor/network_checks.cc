#include "tools/emsctl/doctor/network_checks.h"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>

#include "common/bytes.h"
#include "common/host_port.h"
#include "fabric/net/socket.h"

namespace ems::emsctl {
namespace {

constexpr size_t kNamedMax = 16;
constexpr int64_t kSkewMsMax = 2000;

// "a, b and 7 more"
std::string Named(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamedMax);
  const std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "));
  return shown == names.size() ? text : fmt::format("{} and {} more", text, names.size() - shown);
}

}  // namespace

Finding CheckUnixSocket(const std::string& path, Duration timeout) {
  Finding finding{.check = "unix socket", .found = path};
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) {
    finding.level = Level::kWarn;
    finding.found += ": " + fabric::ErrnoText(errno);
    finding.mend = errno == EACCES
                       ? "let this user see its folder, or clients go over TCP"
                       : "is a server with this unix_path running, and in a container, is the "
                         "folder mounted? Clients go over TCP";
    return finding;
  }
  finding.found +=
      fmt::format(", mode {:o}, owner {}:{}", about.st_mode & 0777U, about.st_uid, about.st_gid);
  const auto connected =
      fabric::Connect(fabric::Address{.host = {}, .port = 0, .unix_path = path}, timeout);
  if (connected.ok()) return finding;
  finding.level = Level::kWarn;
  finding.found += fmt::format(": {}", Message(connected.status()));
  finding.mend = ::access(path.c_str(), W_OK) != 0
                     ? fmt::format("usermod -aG {} USER, or unix_mode of the server", about.st_gid)
                     : "nobody listens there: restart the server";
  return finding;
}

Findings CheckServers(std::span<const ServerSeen> servers) {
  Findings findings;
  Duration slowest{};
  size_t reached = 0;
  for (const ServerSeen& one : servers) {
    if (one.reached.ok()) {
      ++reached;
      slowest = std::max(slowest, one.took);
      continue;
    }
    if (findings.size() == kNamedMax) continue;
    findings.push_back({.level = Level::kFail,
                        .check = "server " + one.name,
                        .found = std::string(Message(one.reached)),
                        .mend = fmt::format("is it running, and does a firewall let this host "
                                            "reach {}?",
                                            one.address)});
  }
  findings.insert(findings.begin(),
                  {.level = reached == servers.size() ? Level::kOk : Level::kFail,
                   .check = "server ports",
                   .found = fmt::format("{} of {} answer, connected in {:.1f} ms at most", reached,
                                        servers.size(),
                                        std::chrono::duration<double, std::milli>(slowest).count()),
                   .mend = reached == servers.size() ? "" : "see the servers below"});
  return findings;
}

Finding CheckVersions(std::string_view own, std::string_view controller,
                      std::span<const ServerSeen> servers) {
  std::map<std::string, std::vector<std::string>> others;
  if (!controller.empty() && controller != own)
    others[std::string(controller)].push_back("the controller");
  for (const ServerSeen& one : servers) {
    if (!one.version.empty() && one.version != own) others[one.version].push_back(one.name);
  }
  Finding finding{.check = "versions", .found = fmt::format("emsctl {}", own)};
  if (others.empty()) return finding;
  for (const auto& [version, who] : others)
    finding.found += fmt::format("; {} {}", Named(who), version);
  finding.level = Level::kWarn;
  finding.mend = "bring all to one version: the controller first, then servers one by one";
  return finding;
}

Finding CheckClocks(std::optional<int64_t> controller_ms, std::span<const ServerSeen> servers) {
  std::vector<std::string> off;
  int64_t most = 0;
  size_t known = 0;
  const auto look = [&](const std::string& who, std::optional<int64_t> skew_ms) {
    if (!skew_ms) return;
    ++known;
    if (std::llabs(*skew_ms) > std::llabs(most)) most = *skew_ms;
    if (std::llabs(*skew_ms) > kSkewMsMax)
      off.push_back(fmt::format("{} {:+.1f} s", who, static_cast<double>(*skew_ms) / 1e3));
  };
  look("the controller", controller_ms);
  for (const ServerSeen& one : servers) look(one.name, one.skew_ms);
  if (known == 0) return {.check = "clocks", .found = "nobody told the time"};
  Finding finding{
      .check = "clocks",
      .found = fmt::format("{} compared with this host's, {:+} ms at most", known, most)};
  if (off.empty()) return finding;
  finding.level = Level::kWarn;
  finding.found = Named(off);
  finding.mend =
      "set them by NTP (chronyc tracking): logs are compared by them, and object stores refuse "
      "requests that are 15 min off";
  return finding;
}

Finding CheckExposure(std::span<const OwnPort> ports, std::span<const Listener> listeners) {
  std::vector<std::string> open;
  size_t known = 0;
  for (const OwnPort& one : ports) {
    const Result<HostPort> address = ParseHostPort(one.address);
    if (!address.ok()) continue;
    const auto is_it = [&](const Listener& listener) { return listener.port == address->port; };
    const auto everywhere = [&](const Listener& l) { return is_it(l) && l.everywhere; };
    if (std::any_of(listeners.begin(), listeners.end(), is_it)) ++known;
    if (std::any_of(listeners.begin(), listeners.end(), everywhere))
      open.push_back(fmt::format("{} (port {})", one.what, address->port));
  }
  if (open.empty()) {
    return {.check = "open ports",
            .found = fmt::format("{} of daemons of this host, none on all addresses", known)};
  }
  return {.level = Level::kWarn,
          .check = "open ports",
          .found = "on all addresses: " + Named(open),
          .mend =
              "nobody has to show who they are: listen on an address of a network that you "
              "trust, or keep others out by a firewall"};
}

}  // namespace ems::emsctl
