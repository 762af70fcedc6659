#pragma once
// The one door to spdlog. One logger a folder; key=value fields; never on a hit path.
// ERROR: a person must act · WARN: degraded, self-healing · INFO: state change · DEBUG: per
// request.
#include <fmt/core.h>

#include <string_view>

#include "common/status.h"

namespace ems::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

// Sets the level and where lines go (standard error). `level` is debug, info, warn, error or off.
// Errors: kInvalidArgument  another word
Status Init(std::string_view level);
bool Enabled(Level level);
void Write(Level level, std::string_view folder, std::string_view line);

}  // namespace ems::log

// EMS_LOG(kInfo, "mp_server", "view installed epoch={}", epoch);
#define EMS_LOG(level, folder, ...)                                                    \
  do {                                                                                 \
    if (::ems::log::Enabled(::ems::log::Level::level))                                 \
      ::ems::log::Write(::ems::log::Level::level, folder, ::fmt::format(__VA_ARGS__)); \
  } while (false)
