// ems-faultproxy: a TCP proxy that damages what it carries, for rehearsals of a bad network.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "common/daemon.h"
#include "fabric/net/socket.h"
#include "tests/support/tcp_proxy.h"

namespace ems::testing {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string listen = "127.0.0.1:0";
  std::string target;
  std::string way = "both";
  std::string carry = "all";
  double delay_ms = 0;
  double drip_ms = 0;
  LinkNoise noise;
  double faults_after_s = 0;
  std::string ready_file;
};

struct CarryName {
  const char* name;
  Carry carry;
};
constexpr CarryName kCarries[] = {{"all", Carry::kAll},
                                  {"stall", Carry::kStall},
                                  {"swallow", Carry::kSwallow},
                                  {"vanish", Carry::kVanish},
                                  {"lose-large", Carry::kLoseLarge}};

std::vector<std::string> CarryNames() {
  std::vector<std::string> names;
  for (const CarryName& one : kCarries) names.emplace_back(one.name);
  return names;
}

Duration FromMs(double ms) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms));
}

LinkFaults FaultsOf(const Flags& flags) {
  LinkFaults faults;
  for (const CarryName& one : kCarries) {
    if (flags.carry == one.name) faults.carry = one.carry;
  }
  faults.delay = FromMs(flags.delay_ms);
  faults.drip = FromMs(flags.drip_ms);
  faults.noise = flags.noise;
  return faults;
}

int Fail(int code, const std::string& text) {
  fmt::print(stderr, "ems-faultproxy: {}\n", text);
  return code;
}

void SetFaults(const Flags& flags, TcpProxy* proxy) {
  const LinkFaults faults = FaultsOf(flags);
  if (flags.way != "to-client") proxy->Set(Way::kToTarget, faults);
  if (flags.way != "to-target") proxy->Set(Way::kToClient, faults);
}

void Report(const ProxyCounts& counts) {
  fmt::print("{} connections\n", counts.connections);
  for (const Way way : {Way::kToTarget, Way::kToClient}) {
    const LinkCounts& one = counts.ways[static_cast<size_t>(way)];
    fmt::print("to {}: {} bytes; {} flips, {} drops, {} duplicates, {} reorders, {} resets\n",
               way == Way::kToTarget ? "the target" : "clients", one.bytes, one.flips, one.drops,
               one.duplicates, one.reorders, one.resets);
  }
}

int Run(const Flags& flags) {
  const auto address = fabric::ParseAddress(flags.listen);
  if (!address.ok() || address->is_unix())
    return Fail(kExitUsage, fmt::format("--listen {}: not HOST:PORT", flags.listen));
  const auto target = fabric::ParseAddress(flags.target);
  if (!target.ok() || !target->is_literal() || target->is_unix() ||
      target->host.find(':') != std::string::npos) {
    return Fail(kExitUsage,
                fmt::format("--target {}: not an IPv4 address and a port", flags.target));
  }
  auto listener = fabric::ListenTcp(*address);
  if (!listener.ok()) return Fail(kExitFailed, ToString(listener.status()));
  const StopSignals signals;
  const std::string at = fabric::FormatHostPort(address->host, fabric::BoundPort(listener->get()));
  TcpProxy proxy(flags.target, *std::move(listener));
  const Duration clean = FromMs(flags.faults_after_s * 1000);
  if (clean == Duration::zero()) SetFaults(flags, &proxy);
  fmt::print("ems-faultproxy: {} forwards to {}, seed {}\n", at, flags.target, flags.noise.seed);
  std::fflush(stdout);
  if (!flags.ready_file.empty()) {
    const nlohmann::json ready = {{"pid", ::getpid()}, {"address", at}};
    const Status written = WriteReadyFile(flags.ready_file, ready.dump());
    if (!written.ok()) return Fail(kExitFailed, ToString(written));
  }
  int signal = clean == Duration::zero() ? 0 : signals.Wait(clean);
  if (clean > Duration::zero() && signal == 0) SetFaults(flags, &proxy);
  while (signal == 0) signal = signals.Wait(std::chrono::seconds(1));
  Report(proxy.counts());
  return kExitOk;
}

}  // namespace
}  // namespace ems::testing

int main(int argc, char** argv) {
  ems::testing::Flags flags;
  flags.noise.seed = std::random_device()();
  ems::Command program(
      {.name = "ems-faultproxy",
       .about = "Forwards TCP connections, and damages what it carries as it is told to.",
       .footer = "Faults are of pieces of the stream, 1460 bytes at most; P is the share of them\n"
                 "that meets it, from 0 to 1. TCP sees none of it: it is what a broken network\n"
                 "card, switch or other proxy does behind its checksum.\n"
                 "SIGTERM, SIGINT: prints what was carried and what faults there were, exits 0.\n"
                 "Exit codes: 0 ended by a signal, 1 cannot listen, 2 usage.\n"
                 "Example: ems-faultproxy --listen 127.0.0.1:7600 --target 127.0.0.1:7500 "
                 "--flip 0.01"});
  const ems::OptionRules share{.check = ems::InRange{0.0, 1.0}, .show_default = false};
  const ems::OptionRules time{.check = ems::InRange{0.0, 1e6}, .show_default = false};
  program.AddOption("--listen", &flags.listen, "HOST:PORT; port 0: any free one, which is printed");
  program.AddOption("--target", &flags.target, "IPv4 address and port to forward to",
                    {.required = true});
  program.AddOption("--way", &flags.way, "Direction of the faults",
                    {.check = ems::OneOf{{"both", "to-target", "to-client"}}});
  program.AddOption("--carry", &flags.carry,
                    "stall: nobody reads; swallow: read and dropped; vanish: packets are dropped "
                    "unseen, a black hole; lose-large: those above 1400 bytes",
                    {.check = ems::OneOf{ems::testing::CarryNames()}});
  program.AddOption("--delay-ms", &flags.delay_ms, "Of each byte", time);
  program.AddOption("--drip-ms", &flags.drip_ms, "One byte each so often", time);
  program.AddOption("--flip", &flags.noise.flip, "P: one bit of it is flipped", share);
  program.AddOption("--drop", &flags.noise.drop, "P: it is left out of the stream", share);
  program.AddOption("--duplicate", &flags.noise.duplicate, "P: it comes twice", share);
  program.AddOption("--reorder", &flags.noise.reorder, "P: the next one overtakes it", share);
  program.AddOption("--reset", &flags.noise.reset, "P: both ends get a RST instead of it", share);
  program.AddOption("--seed", &flags.noise.seed, "Of these choices; without it a new one",
                    {.show_default = false});
  program.AddOption("--faults-after-s", &flags.faults_after_s,
                    "All is well for so many seconds first", time);
  program.AddOption("--ready-file", &flags.ready_file,
                    "Written once it listens: its process id and address");
  if (const auto exit_code = program.Parse({argv + 1, argv + argc})) return *exit_code;
  return ems::testing::Run(flags);
}
