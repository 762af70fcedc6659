#include "common/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <sstream>
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

using Words = std::vector<std::string>;

void AddMissing(const Words& words, Words* to) {
  for (const std::string& word : words) {
    if (std::find(to->begin(), to->end(), word) == to->end()) to->push_back(word);
  }
}

// What may stand behind a command, and what its options are called.
struct Completion {
  std::string path;  // "/model/add"; empty: of the program
  Words commands{};
  Words options{};
  Words with_value{};  // of the options
};

void AddCompletions(const CLI::App& app, const std::string& path, std::vector<Completion>* all) {
  Completion here{.path = path};
  for (const CLI::Option* option : app.get_options()) {
    Words names;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    here.options.insert(here.options.end(), names.begin(), names.end());
    if (option->get_items_expected_max() > 0)
      here.with_value.insert(here.with_value.end(), names.begin(), names.end());
  }
  const size_t index = all->size();
  all->emplace_back();
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // hidden
    Words names = command->get_aliases();
    names.push_back(command->get_name());
    for (const std::string& name : names) AddCompletions(*command, path + "/" + name, all);
    here.commands.insert(here.commands.end(), names.begin(), names.end());
  }
  (*all)[index] = std::move(here);
}

// {0} the program, {1} the same as a name of bash, {2} options that take a value, {3} paths of
// commands, {4} a case for each of them.
constexpr std::string_view kBashCompletion =
    R"(# Completion of {0} for bash: source it, or install it as
# /usr/share/bash-completion/completions/{0}
_{1}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} path= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in
      {2}) ((++i)); continue ;;
    esac
    case $path/${{COMP_WORDS[i]}} in
      {3}) path=$path/${{COMP_WORDS[i]}} ;;
    esac
  done
  local commands= options=
  case $path in
{4}  esac
  COMPREPLY=()
  case $prev in
    {2}) ;;
    *)
      if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
        return
      elif [[ -n $commands ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$cur"))
        return
      fi
      ;;
  esac
  compopt -o filenames 2>/dev/null
  COMPREPLY=($(compgen -f -- "$cur"))
}}
complete -F _{1} {0}
)";

// "a|b", and what matches nothing when there are none.
std::string Pattern(const Words& words) {
  return words.empty() ? "''" : fmt::format("{}", fmt::join(words, "|"));
}

}  // namespace

Command::Command(const Program& program)
    : program_(std::make_unique<CLI::App>(program.about, program.name)), app_(program_.get()) {
  if (!program.version.empty())
    app_->set_version_flag("--version", program.name + " " + program.version);
  app_->footer(program.footer);
  app_->fallthrough(program.options_after_command);
  app_->failure_message(UsageError);
  on_usage_error_ = program.on_usage_error;
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
    if (!on_usage_error_) return app_->exit(error) == 0 ? 0 : kExitUsage;
    std::ostringstream out, errors;
    const int code = app_->exit(error, out, errors);
    std::fputs(out.str().c_str(), stdout);
    if (code == 0) return 0;
    on_usage_error_(errors.str());
    return kExitUsage;
  }
  return std::nullopt;
}

std::string Command::BashCompletion() const {
  EMS_CHECK(program_ != nullptr, "a program is completed");
  std::vector<Completion> all;
  AddCompletions(*app_, "", &all);
  Words paths, with_value;
  std::string cases;
  for (Completion& one : all) {
    if (app_->get_fallthrough() && &one != &all.front())
      AddMissing(all.front().options, &one.options);
    if (!one.path.empty()) paths.push_back(one.path);
    AddMissing(one.with_value, &with_value);
    cases += fmt::format("    '{}') commands='{}' options='{}' ;;\n", one.path,
                         fmt::join(one.commands, " "), fmt::join(one.options, " "));
  }
  std::string function = app_->get_name();
  std::replace(function.begin(), function.end(), '-', '_');
  return fmt::format(kBashCompletion, app_->get_name(), function, Pattern(with_value),
                     Pattern(paths), cases);
}

int Command::Run() const {
  for (const auto& command : commands_) {
    if (command->app_->parsed()) return command->Run();
  }
  EMS_CHECK(run_ != nullptr, "the command has nothing to run");
  return run_();
}

}  // namespace ems
