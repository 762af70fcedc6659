// ems-pdc: the serving loop, whole or in parts.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/config_text.h"
#include "common/daemon.h"
#include "common/daemon_arguments.h"
#include "common/logging.h"
#include "pdc/daemon/loop_model.h"
#include "pdc/daemon/serving_loop.h"
#include "proto/config.pb.h"

namespace {

constexpr std::chrono::seconds kStopPatience{10};
constexpr std::chrono::seconds kStopMost{20};

constexpr const char* kAbout =
    "ems-pdc: serves a small language model with prefill, decode and the EMS pool apart from each "
    "other.\n\n"
    "Prompts go to prefill workers, which take what the pool has of them and compute the rest; "
    "their KV is handed to decode\n"
    "workers, which generate the answers; a router in front speaks the OpenAI API. The model is a "
    "real transformer on the\n"
    "CPU; NPUs, their HBM and the links between them are EMULATED (docs/FABRIC.md).";

constexpr const char* kFooter = R"(
SIGNALS
  SIGTERM, SIGINT  takes no more requests, lets those in hand end (10 s at most), exits 0;
                   where stopping takes 20 s, exits 1 at once

EXIT STATUS
  0 stopped in order    1 failed to start, to go on or to stop    2 usage or configuration

EXAMPLES
  ems-pdc --set model.preset=demo --set model.mtp=on
  ems-pdc --set model.preset=base --set pool.controller=127.0.0.1:7400
  ems-pdc --set role=prefill --set unix_path=/run/ems/prefill.sock
  ems-pdc --set role=decode --set listen=127.0.0.1:7601 --set http_listen=127.0.0.1:8001 \
          --set prefill_peers=127.0.0.1:7600
  ems-pdc --set role=router --set decode_peers=127.0.0.1:7601
  ems-pdc --help-config
)";

int Serve(const ems::config::PdcConfig& config, const ems::DaemonArguments& arguments) {
  const ems::StopSignals signals;
  ems::StopLimit limit("pdc", kStopMost);
  EMS_LOG(kInfo, "pdc", "starting version={} {}", EMS_VERSION, ems::config::OneLine(config));
  auto loop = ems::pdc::ServingLoop::Start(config);
  if (!loop.ok()) {
    const bool usage = loop.status().code() == ems::StatusCode::kInvalidArgument;
    return arguments.Fail(usage ? ems::kDaemonUsage : ems::kDaemonFailed,
                          ems::Message(loop.status()));
  }
  EMS_LOG(kInfo, "pdc", "serving role={} http={} address={}", config.role(),
          (*loop)->http_address(), (*loop)->address());
  arguments.Notify("READY=1");  // it listens; /readyz says when it would serve
  bool announced = arguments.ready_file().empty();
  int signal = 0;
  while ((signal = signals.Wait(std::chrono::milliseconds(announced ? 1000 : 10))) == 0) {
    // A part waits for the others to say that it is ready; what needs its addresses does not.
    if (announced) continue;
    const nlohmann::json ready = {{"pid", ::getpid()},
                                  {"role", config.role()},
                                  {"http", (*loop)->http_address()},
                                  {"address", (*loop)->address()}};
    const ems::Status written = ems::WriteReadyFile(arguments.ready_file(), ready.dump());
    if (!written.ok()) return arguments.Fail(ems::kDaemonFailed, ems::Message(written));
    announced = true;
  }
  EMS_LOG(kInfo, "pdc", "stopping signal={}", signal);
  arguments.Notify("STOPPING=1");
  limit.Begin();
  (*loop)->Stop(kStopPatience);
  loop->reset();
  EMS_LOG(kInfo, "pdc", "stopped");
  return ems::kDaemonOk;
}

}  // namespace

int main(int argc, char** argv) {
  ems::SkipLockOrderChecks();
  ems::DaemonArguments arguments(
      {.program = {.name = "ems-pdc", .about = kAbout, .version = EMS_VERSION, .footer = kFooter},
       .set_example = "model.preset=base",
       .ready_file = "File that receives one JSON line {pid, role, http, address} once the process "
                     "listens; /readyz says when it would serve"});
  std::string model_file;
  arguments.program()->AddOption("--write-model", &model_file,
                                 "Write the preset's weights to this safetensors file, and exit");
  ems::config::PdcConfig config;
  if (const auto exit_code = arguments.Load({argv + 1, argv + argc}, &config)) return *exit_code;
  const ems::Status checked = ems::pdc::CheckLoopConfig(config);
  if (!checked.ok()) return arguments.Refuse(checked);
  const std::vector<ems::Status> problems = ems::pdc::CheckLoopMachine(config);
  if (arguments.check_only()) return arguments.ShowConfig(config, problems);
  if (!model_file.empty()) {
    const ems::Status written = ems::pdc::WriteLoopModel(config, model_file);
    return written.ok() ? ems::kDaemonOk
                        : arguments.Fail(ems::kDaemonFailed, ems::Message(written));
  }
  const ems::Status logging =
      ems::OpenLog(config.log_level(), config.log_format(), "pdc", problems);
  if (!logging.ok()) return arguments.Refuse(logging);
  return Serve(config, arguments);
}
