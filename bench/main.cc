// ems-bench: measures a running cluster. Each command is a file of its own; this one only chooses.
#include <CLI/CLI.hpp>
#include <functional>

#include "bench/report.h"
#include "bench/store_command.h"
#include "bench/trace_command.h"
#include "common/logging.h"

int main(int argc, char** argv) {
  CLI::App app{
      "ems-bench measures a running EMS cluster.\n"
      "Every command takes --json FILE, --quick and --gate. Gates print one line each,\n"
      "  gate <name> <value> <op> <bound> pass|fail",
      "ems-bench"};
  app.set_version_flag("--version", std::string("ems-bench ") + EMS_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 fine, 1 failed, 2 usage. `ems-bench COMMAND --help` tells more.");
  std::function<int()> run;
  ems::bench::AddStoreCommand(&app, &run);
  ems::bench::AddTraceCommand(&app, &run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? ems::bench::kExitOk : ems::bench::kExitUsage;
  }
  if (!ems::log::Init("warn").ok()) return ems::bench::kExitFailed;
  return run();
}
