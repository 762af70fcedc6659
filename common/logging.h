#pragma once
// The one door to spdlog. One logger a folder; key=value fields; never on a hit path.
// ERROR: a person must act · WARN: degraded, self-healing · INFO: state change · DEBUG: per
// request.
//
// What repeats is held back (repeat_filter.h): of WARN and ERROR two lines of one kind within
// 15 s are written, of INFO twenty, then one line that says how often it was repeated. DEBUG is
// never held back.
#include <fmt/core.h>

#include <string_view>

#include "common/status.h"

namespace ems::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

// Sets the level and the format, and forgets what was held back; lines go to standard error.
// `level`: debug, info, warn, error or off. `format`: text, or json (log_line.h).
// Errors: kInvalidArgument  another word
Status Init(std::string_view level, std::string_view format = "text");
bool Enabled(Level level);
// Formats and writes a line, or holds it back. Cost: a lock, and a system call where it is written.
void WriteLine(Level level, std::string_view folder, std::string_view format,
               fmt::format_args args);
// Writes that lines were held back whose time is over, as each line does: for programs that may
// have no more to say.
void WriteHeldBack();
// The same whether or not it is over: for programs that end.
void WriteAllHeldBack();

template <typename... Args>
void Write(Level level, std::string_view folder, fmt::format_string<Args...> format,
           Args&&... args) {
  const fmt::string_view text = format;
  WriteLine(level, folder, {text.data(), text.size()}, fmt::make_format_args(args...));
}

}  // namespace ems::log

// EMS_LOG(kInfo, "mp_server", "view installed epoch={}", epoch);
#define EMS_LOG(level, folder, ...)                                     \
  do {                                                                  \
    if (::ems::log::Enabled(::ems::log::Level::level))                  \
      ::ems::log::Write(::ems::log::Level::level, folder, __VA_ARGS__); \
  } while (false)
