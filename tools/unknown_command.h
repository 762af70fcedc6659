#pragma once
// What a command line tool says when it was called wrongly.
#include <string>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace ems::terminal {

// For CLI::App::failure_message: what CLI11 says; where a command is missing and a word is there
// that is none, that word, the command that it may be, and all of them.
std::string UsageError(const CLI::App* app, const CLI::Error& error);

}  // namespace ems::terminal
