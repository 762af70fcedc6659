// ems-bench: measures a running cluster. Each command is a file of its own; this one only chooses.
#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "common/command_line.h"
#include "common/daemon.h"
#include "common/logging.h"

namespace {

constexpr const char* kAbout =
    "ems-bench measures a running EMS cluster.\n"
    "Every command takes --json FILE, --quick and --gate [exact|all]. Gates print one line each,\n"
    "  gate <name> <value> <op> <bound> pass|fail";

constexpr const char* kFooter =
    "ENVIRONMENT\n"
    "  EMS_CONTROLLER   host:port of the controller, where --controller is not given\n"
    "  EMS_SHM_TOKEN    token for servers of this host, where --shm-token is not given\n\n"
    "EXIT STATUS\n"
    "  0  all went well\n"
    "  1  an error, a wrong byte, or a gate that failed\n"
    "  2  usage\n\n"
    "EXAMPLES\n"
    "  ems-bench store --transport tcp --gate    # Put, Get, Exists beside a raw socket\n"
    "  ems-bench trace --capacity-percent 10     # a real trace beside an ideal LRU\n"
    "  ems-bench memory --gate exact             # what holds on any machine, no cluster\n"
    "  ems-bench trace --help                    # every flag of a command, and examples\n\n"
    "SEE ALSO\n"
    "  emsctl, mp-controller, mp-server";

}  // namespace

int main(int argc, char** argv) {
  ems::SkipLockOrderChecks();
  ems::Command program(
      {.name = "ems-bench", .about = kAbout, .version = EMS_VERSION, .footer = kFooter});
  ems::bench::AddStoreCommand(&program);
  ems::bench::AddTraceCommand(&program);
  ems::bench::AddContextCommand(&program);
  ems::bench::AddControlCommand(&program);
  ems::bench::AddElasticCommand(&program);
  ems::bench::AddFabricCommand(&program);
  ems::bench::AddEngineCommand(&program);
  ems::bench::AddEnginesCommand(&program);
  ems::bench::AddFairnessCommand(&program);
  ems::bench::AddHotCommand(&program);
  ems::bench::AddLocalCommand(&program);
  ems::bench::AddMemoryCommand(&program);
  ems::bench::AddModelCommand(&program);
  ems::bench::AddPaperCommand(&program);
  ems::bench::AddServeCommand(&program);
  ems::bench::AddSsdCommand(&program);
  if (const auto exit_code = program.Parse({argv + 1, argv + argc})) return *exit_code;
  if (!ems::log::Init("warn").ok()) return ems::bench::kExitFailed;
  return program.Run();
}
