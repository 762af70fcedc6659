// ems-bench: measures a running cluster. Each command is a file of its own; this one only chooses.
#include <CLI/CLI.hpp>
#include <functional>

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
#include "common/logging.h"
#include "tools/unknown_command.h"

int main(int argc, char** argv) {
  CLI::App app{
      "ems-bench measures a running EMS cluster.\n"
      "Every command takes --json FILE, --quick and --gate. Gates print one line each,\n"
      "  gate <name> <value> <op> <bound> pass|fail",
      "ems-bench"};
  app.set_version_flag("--version", std::string("ems-bench ") + EMS_VERSION);
  app.require_subcommand(1);
  app.failure_message(ems::terminal::UsageError);
  app.footer(
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
      "  emsctl, mp-controller, mp-server");
  std::function<int()> run;
  ems::bench::AddStoreCommand(&app, &run);
  ems::bench::AddTraceCommand(&app, &run);
  ems::bench::AddContextCommand(&app, &run);
  ems::bench::AddFabricCommand(&app, &run);
  ems::bench::AddEngineCommand(&app, &run);
  ems::bench::AddEnginesCommand(&app, &run);
  ems::bench::AddLocalCommand(&app, &run);
  ems::bench::AddMemoryCommand(&app, &run);
  ems::bench::AddModelCommand(&app, &run);
  ems::bench::AddPaperCommand(&app, &run);
  ems::bench::AddServeCommand(&app, &run);
  ems::bench::AddSsdCommand(&app, &run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? ems::bench::kExitOk : ems::bench::kExitUsage;
  }
  if (!ems::log::Init("warn").ok()) return ems::bench::kExitFailed;
  return run();
}
