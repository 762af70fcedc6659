#include "common/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <memory>
#include <utility>

namespace ems::log {
namespace {

std::atomic<Level> current_level{Level::kInfo};

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "ems", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(spdlog::level::debug);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

}  // namespace

Status Init(std::string_view level) {
  constexpr std::array<std::pair<std::string_view, Level>, 5> kLevels = {{{"debug", Level::kDebug},
                                                                          {"info", Level::kInfo},
                                                                          {"warn", Level::kWarn},
                                                                          {"error", Level::kError},
                                                                          {"off", Level::kOff}}};
  for (const auto& [name, value] : kLevels) {
    if (name == level) {
      current_level.store(value, std::memory_order_relaxed);
      return OkStatus();
    }
  }
  return Error(StatusCode::kInvalidArgument,
               "log level \"{}\": debug, info, warn, error and off are known", level);
}

bool Enabled(Level level) { return level >= current_level.load(std::memory_order_relaxed); }

void Write(Level level, std::string_view folder, std::string_view line) {
  constexpr std::array kToSpdlog = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                    spdlog::level::err};
  Logger().log(kToSpdlog[static_cast<size_t>(level)], "{}: {}", folder, line);
}

}  // namespace ems::log
