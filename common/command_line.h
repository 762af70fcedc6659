#pragma once
// The command line of a program: options, positional arguments, commands, --help, --version and
// usage errors. The one door to CLI11.
//
//   Command program({.name = "ems-copy", .about = "Copies files."});
//   Command* file = program.AddCommand("file", "Copy one file");
//   file->AddOption("source", &flags.source, "File to read", {.required = true});
//   file->AddOption("--threads", &flags.threads, "That copy", {.check = InRange{1, 64}});
//   file->AddFlag("--sync", &flags.sync, "Return once it is on the disk");
//   file->SetRun([&] { return CopyFile(flags); });
//   if (const auto exit_code = program.Parse({argv + 1, argv + argc})) return *exit_code;
//   return program.Run();
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace CLI {
class App;
}

namespace ems {

// Where the value of an option goes. What is there before the parse is the default.
using OptionTarget =
    std::variant<std::string*, int*, uint32_t*, uint64_t*, double*, std::optional<std::string>*,
                 std::optional<double>*, std::vector<std::string>*, std::vector<int>*,
                 std::vector<uint32_t>*, std::vector<double>*>;

// Both ends included.
template <typename Number>
struct InRange {
  Number min, max;
};
template <typename Number>
InRange(Number, Number) -> InRange<Number>;
struct OneOf {
  std::vector<std::string> words;
};
struct ExistingFile {};
struct ExistingFolder {};
// What each value has to be; std::monostate: anything of the target's type.
using ValueCheck = std::variant<std::monostate, InRange<int>, InRange<uint32_t>, InRange<double>,
                                OneOf, ExistingFile, ExistingFolder>;

struct OptionRules {
  ValueCheck check = {};
  std::string environment = {};    // variable that is read when the option is not given
  std::string value_if_bare = {};  // makes the value optional: what the option alone stands for
  char delimiter = 0;              // between the values of a list that are given as one argument
  bool required = false;
  bool show_default = true;  // in --help, unless it is empty or the option is required
};

struct Program {
  std::string name;
  std::string about = {};
  std::string version = {};  // empty: no --version
  std::string footer = {};   // end of --help, also of commands without a footer of their own
  bool options_after_command = false;  // the program's own options may follow a command
  // Takes the text of a usage error, which goes to standard error without this.
  std::function<void(const std::string& text)> on_usage_error = {};
};

// A program, or one of its commands. A command that has commands of its own and nothing to run
// needs one of them. Declarations that contradict each other, such as a name that is used twice,
// are bugs and end the process. Threading: one thread.
class Command final {
 public:
  explicit Command(const Program& program);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Owner: this.
  Command* AddCommand(const std::string& name, const std::string& help);
  void SetAlias(const std::string& name);
  void SetFooter(const std::string& text);
  void Hide();  // from --help
  // What Run() of the program calls, and returns, when the arguments name this command.
  void SetRun(std::function<int()> run);

  // A `name` without dashes is a positional argument. A list takes several arguments, and may be
  // given again. `target` must outlive the parse.
  void AddOption(const std::string& name, OptionTarget target, const std::string& help,
                 const OptionRules& rules = {});
  // `names` are separated by commas; one that begins with '!' clears the flag. `target` must
  // outlive the parse.
  void AddFlag(const std::string& names, bool* target, const std::string& help);
  // Both are options of this command, and may not be given together.
  void Exclude(const std::string& option, const std::string& other);

  // Of the program: parses the arguments behind its name. Returns the exit code when the program
  // has to end: 0 when it has printed --help or --version, 2 when it has printed a usage error.
  std::optional<int> Parse(std::vector<std::string> arguments);
  // Of the program, after Parse() returned nothing.
  int Run() const;

  // Of the program: a script for bash that completes its commands and options, and files where
  // neither stands. zsh takes it, too, after `bashcompinit`.
  std::string BashCompletion() const;

 private:
  explicit Command(CLI::App* app);
  void RequireCommands();

  std::unique_ptr<CLI::App> program_;  // null: this is a command
  CLI::App* app_;
  std::vector<std::unique_ptr<Command>> commands_;
  std::function<int()> run_;
  std::function<void(const std::string&)> on_usage_error_;  // of a program; may be empty
};

}  // namespace ems
