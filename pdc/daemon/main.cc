// ems-pdc: the serving loop, whole or in parts.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/config.h"
#include "common/daemon.h"
#include "common/logging.h"
#include "common/machine_check.h"
#include "pdc/daemon/loop_model.h"
#include "pdc/daemon/serving_loop.h"
#include "proto/config.pb.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr std::chrono::seconds kStopPatience{10};

constexpr const char* kAbout =
    "ems-pdc: serves a small language model with prefill, decode and the EMS pool apart from each "
    "other.\n\n"
    "Prompts go to prefill workers, which take what the pool has of them and compute the rest; "
    "their KV goes on to decode\n"
    "workers, which generate the answers; a router in front speaks the OpenAI API. The model is a "
    "real transformer on the\n"
    "CPU; NPUs, their HBM and the links between them are EMULATED (docs/FABRIC.md).";

constexpr const char* kFooter = R"(
SIGNALS
  SIGTERM, SIGINT  takes no more requests, lets those in hand end (10 s at most), exits 0

EXIT STATUS
  0 stopped in order    1 failed to start or to go on    2 usage or configuration

EXAMPLES
  ems-pdc
  ems-pdc --set model.preset=base --set pool.controller=127.0.0.1:7400
  ems-pdc --set role=prefill --set unix_path=/run/ems/prefill.sock
  ems-pdc --set role=decode --set listen=127.0.0.1:7601 --set http_listen=127.0.0.1:8001 \
          --set prefill_peers=127.0.0.1:7600
  ems-pdc --set role=router --set decode_peers=127.0.0.1:7601
  ems-pdc --help-config
)";

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string ready_file;
  std::string write_model;
  bool help_config = false;
  bool check_config = false;
};

int Fail(int code, const ems::Status& status) {
  std::fprintf(stderr, "ems-pdc: %s\n", std::string(ems::Message(status)).c_str());
  return code;
}

int Run(const Arguments& arguments, const ems::config::PdcConfig& config) {
  const ems::StopSignals signals;
  EMS_LOG(kInfo, "pdc", "starting version={} {}", EMS_VERSION, ems::config::OneLine(config));
  auto loop = ems::pdc::ServingLoop::Start(config);
  if (!loop.ok()) {
    const bool usage = loop.status().code() == ems::StatusCode::kInvalidArgument;
    return Fail(usage ? kUsage : kFailed, loop.status());
  }
  EMS_LOG(kInfo, "pdc", "serving role={} http={} address={}", config.role(),
          (*loop)->http_address(), (*loop)->address());
  bool announced = arguments.ready_file.empty();
  int signal = 0;
  while ((signal = signals.Wait(std::chrono::milliseconds(announced ? 1000 : 10))) == 0) {
    // A part waits for the others to say that it is ready; what needs its addresses does not.
    if (announced) continue;
    const nlohmann::json ready = {{"pid", ::getpid()},
                                  {"role", config.role()},
                                  {"http", (*loop)->http_address()},
                                  {"address", (*loop)->address()}};
    const ems::Status written = ems::WriteReadyFile(arguments.ready_file, ready.dump());
    if (!written.ok()) return Fail(kFailed, written);
    announced = true;
  }
  EMS_LOG(kInfo, "pdc", "stopping signal={}", signal);
  (*loop)->Stop(kStopPatience);
  loop->reset();
  EMS_LOG(kInfo, "pdc", "stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(kAbout, "ems-pdc");
  app.footer(kFooter);
  Arguments arguments;
  app.add_option("--config", arguments.config, "YAML configuration file");
  app.add_option("--set", arguments.overrides,
                 "Override one option, e.g. --set model.preset=base; may be repeated")
      ->take_all();
  app.add_option("--ready-file", arguments.ready_file,
                 "File that receives one JSON line {pid, role, http, address} once the process "
                 "listens; /readyz says when it would serve");
  app.add_option("--write-model", arguments.write_model,
                 "Write the preset's weights to this safetensors file, and exit");
  app.add_flag("--help-config", arguments.help_config,
               "List every option with default, unit and range, and exit");
  app.add_flag("--check-config", arguments.check_config,
               "Print the resulting configuration and exit");
  app.set_version_flag("--version", std::string("ems-pdc ") + EMS_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  ems::config::PdcConfig config;
  if (arguments.help_config) {
    std::printf("%s", ems::config::Describe(config).c_str());
    return 0;
  }
  ems::Status status = ems::config::Load(arguments.config, arguments.overrides, &config);
  if (status.ok()) status = ems::pdc::CheckLoopConfig(config);
  if (!status.ok()) return Fail(kUsage, status);
  const std::vector<ems::Status> problems = ems::pdc::CheckLoopMachine(config);
  if (arguments.check_config) {
    std::printf("%s\n", ems::config::OneLine(config).c_str());
    ems::PrintWarnings("ems-pdc", problems);
    return 0;
  }
  if (!arguments.write_model.empty()) {
    const ems::Status written = ems::pdc::WriteLoopModel(config, arguments.write_model);
    return written.ok() ? 0 : Fail(kFailed, written);
  }
  if (!ems::log::Init(config.log_level()).ok()) return kUsage;
  status = ems::LogWarnings("pdc", problems);
  return status.ok() ? Run(arguments, config) : Fail(kUsage, status);
}
