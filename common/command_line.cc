#include "common/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/nearest_word.h"

namespace ems {
namespace {

constexpr int kExitUsage = 2;

// CLI11 throws when declarations contradict each other.
template <typename Declaration>
auto Declare(Declaration declaration) {
  try {
    return declaration();
  } catch (const CLI::Error& error) {
    EMS_CHECK(false, "{}", error.what());
  }
}

// For CLI::App::failure_message: the message of CLI11, but where a command is expected and another
// word is there, that word, the command that it may be, and all commands.
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
  // A command without a group is hidden from --help, too.
  for (const CLI::App* one :
       last->get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); }))
    commands.push_back(one->get_name());
  const std::string nearest = NearestWord(rest[0], commands);
  return fmt::format("{}: there is no command \"{}\"{}; commands here: {}\n{}", path,
                     Printable(rest[0]),
                     nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest),
                     fmt::join(commands, ", "), "Run with --help for more information.\n");
}

void AddCheck(std::monostate, CLI::Option*) {}
template <typename Number>
void AddCheck(const InRange<Number>& range, CLI::Option* option) {
  option->check(CLI::Range(range.min, range.max));
}
void AddCheck(const OneOf& allowed, CLI::Option* option) {
  option->check(CLI::IsMember(allowed.words));
}
void AddCheck(ExistingFile, CLI::Option* option) { option->check(CLI::ExistingFile); }
void AddCheck(ExistingFolder, CLI::Option* option) { option->check(CLI::ExistingDirectory); }

// Lists and optional values may be empty; then --help shows no default.
template <typename T>
bool IsEmpty(const T& value) {
  if constexpr (std::is_arithmetic_v<T>)
    return false;
  else if constexpr (requires { value.has_value(); })
    return !value.has_value();
  else
    return value.empty();
}

}  // namespace

Command::Command(const Program& program)
    : program_(std::make_unique<CLI::App>(program.about, program.name)), app_(program_.get()) {
  if (!program.version.empty())
    app_->set_version_flag("--version", program.name + " " + program.version);
  app_->footer(program.footer);
  app_->fallthrough(program.options_after_command);
  app_->failure_message(UsageError);
}

Command::Command(CLI::App* app) : app_(app) {}
Command::~Command() = default;

Command* Command::AddCommand(const std::string& name, const std::string& help) {
  CLI::App* const added = Declare([&] { return app_->add_subcommand(name, help); });
  commands_.push_back(std::unique_ptr<Command>(new Command(added)));
  return commands_.back().get();
}

void Command::SetAlias(const std::string& name) {
  Declare([&] { app_->alias(name); });
}
void Command::SetFooter(const std::string& text) { app_->footer(text); }
void Command::Hide() { app_->group(""); }
void Command::SetRun(std::function<int()> run) { run_ = std::move(run); }

void Command::AddOption(const std::string& name, OptionTarget target, const std::string& help,
                        const OptionRules& rules) {
  CLI::Option* const option = std::visit(
      [&](auto* value) { return Declare([&] { return app_->add_option(name, *value, help); }); },
      target);
  std::visit([&](const auto& check) { AddCheck(check, option); }, rules.check);
  if (!rules.environment.empty()) option->envname(rules.environment);
  if (rules.delimiter != 0) option->delimiter(rules.delimiter);
  option->required(rules.required);
  const bool has_default = std::visit([](auto* value) { return !IsEmpty(*value); }, target);
  if (!rules.value_if_bare.empty()) {
    option->expected(0, 1)->default_str(rules.value_if_bare);
    option->option_text(fmt::format("[{}]", option->get_type_name()));
  } else if (rules.show_default && has_default && !rules.required) {
    option->capture_default_str();
  }
}

void Command::AddFlag(const std::string& names, bool* target, const std::string& help) {
  Declare([&] { app_->add_flag(names, *target, help); });
}

void Command::Exclude(const std::string& option, const std::string& other) {
  Declare([&] { app_->get_option(option)->excludes(app_->get_option(other)); });
}

void Command::RequireCommands() {
  if (!commands_.empty()) app_->require_subcommand(run_ ? 0 : 1, 1);
  for (const auto& command : commands_) command->RequireCommands();
}

std::optional<int> Command::Parse(std::vector<std::string> arguments) {
  EMS_CHECK(program_ != nullptr, "a command is parsed by its program");
  RequireCommands();
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app_->parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return app_->exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

int Command::Run() const {
  for (const auto& command : commands_) {
    if (command->app_->parsed()) return command->Run();
  }
  EMS_CHECK(run_ != nullptr, "the command has nothing to run");
  return run_();
}

}  // namespace ems
