#include "tools/unknown_command.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "common/bytes.h"
#include "common/nearest_word.h"

namespace ems::terminal {

std::string UsageError(const CLI::App* app, const CLI::Error& error) {
  const std::string usual = CLI::FailureMessage::simple(app, error);
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::RequiredError)) return usual;
  const CLI::App* last = app;  // the last command that was understood
  std::string path = app->get_name();
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().front();
    path += " " + last->get_name();
  }
  const std::vector<std::string> rest = app->remaining(true);
  if (last->get_require_subcommand_min() == 0 || rest.empty() || rest[0].starts_with('-'))
    return usual;
  std::vector<std::string> commands;
  // What has no group is hidden from --help, too.
  for (const CLI::App* one :
       last->get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); }))
    commands.push_back(one->get_name());
  const std::string nearest = NearestWord(rest[0], commands);
  return fmt::format("{}: there is no command \"{}\"{}; commands here: {}\n{}", path,
                     Printable(rest[0]),
                     nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest),
                     fmt::join(commands, ", "), "Run with --help for more information.\n");
}

}  // namespace ems::terminal
