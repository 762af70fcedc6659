#pragma once
// A command that an operator gives once and that is run for each of several servers: its words,
// with places for what differs. No shell reads it: a name that a server has given itself can
// neither end a word nor begin one. Pure.
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::emsctl {

// Threading: immutable.
class CommandWords final {
 public:
  // Splits `text` as a shell does where it finds blanks, '…', "…" and \, and nothing else: there
  // are no variables, pipes or globs. {name} and {host} stand for the server's.
  // Errors: kInvalidArgument  a quote that does not end, no word, another {…}, or neither of the
  // two: it would be the same for each server
  static Result<CommandWords> Parse(std::string_view text);

  // For one server. Errors: kInvalidArgument  a name or host that is more than letters, digits and
  // ".-_:" or begins with '-': the program that is run, or a shell behind it as with ssh, could
  // take it for something else
  Result<std::vector<std::string>> For(std::string_view name, std::string_view host) const;

 private:
  explicit CommandWords(std::vector<std::string> words) : words_(std::move(words)) {}
  std::vector<std::string> words_;
};

// host of "host:port" and "[host]:port".
std::string HostOf(std::string_view address);
// The words as a shell would take them, for people.
std::string Quoted(const std::vector<std::string>& words);

}  // namespace ems::emsctl
