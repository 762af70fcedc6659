// ems-bench: measures a running cluster. Each command is a file of its own; this one only chooses.
#include "bench/context_command.h"
#include "bench/engine_command.h"
#include "bench/engines_command.h"
#include "bench/fabric_command.h"
#include "bench/local_command.h"
#include "bench/memory_command.h"
#include "bench/model_command.h"
#include "bench/paper_command.h"
#include "bench/report.h"
#include "bench/serve_command.h"
#include "bench/ssd_command.h"
#include "bench/store_command.h"
#include "bench/trace_command.h"
#include "common/command_line.h"
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
    "  ems-bench context --gate                  # made-up workloads, paged KV beside memcpy\n"
    "  ems-bench model --gate                    # instances that load models, beside a slow "
    "source\n"
    "  ems-bench fabric --gate                   # emulated links beside their model, no "
    "cluster\n"
    "  ems-bench memory --gate                   # pool efficiency and allocation, no cluster\n"
    "  ems-bench engine --gate                   # the serving loop's model on the CPU, no "
    "cluster\n"
    "  ems-bench serve --gate                    # the serving loop with EMS and without\n"
    "  ems-bench engines --gate                  # seats in engines, on clusters of their own\n"
    "  ems-bench ssd --gate                      # the SSD tier beside fio, no cluster\n"
    "  ems-bench local --gate --plot local.svg   # beside memcpy, redis and memcached\n"
    "  ems-bench paper --gate                    # the papers' figures by a cost model, no "
    "cluster\n"
    "  ems-bench trace --help                    # every flag of a command\n\n"
    "SEE ALSO\n"
    "  emsctl, mp-controller, mp-server";

}  // namespace

int main(int argc, char** argv) {
  ems::Command program(
      {.name = "ems-bench", .about = kAbout, .version = EMS_VERSION, .footer = kFooter});
  ems::bench::AddStoreCommand(&program);
  ems::bench::AddTraceCommand(&program);
  ems::bench::AddContextCommand(&program);
  ems::bench::AddFabricCommand(&program);
  ems::bench::AddEngineCommand(&program);
  ems::bench::AddEnginesCommand(&program);
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
