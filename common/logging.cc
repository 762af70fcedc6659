#include "common/logging.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/log_line.h"
#include "common/repeat_filter.h"

namespace ems::log {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warn", "error", "off"};
// Lines of one kind that are written within RepeatFilter::kWindow. Of changes of state, as of
// servers that come and go, each counts; of trouble the first line says all.
constexpr uint64_t kInfosMost = 20;
constexpr uint64_t kTroublesMost = 2;
constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %v";
constexpr const char* kJsonPattern = "{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",%v}";

std::atomic<Level> current_level{Level::kInfo};
std::atomic<bool> is_json{false};

Guarded<RepeatFilter>& Filter() {
  static Guarded<RepeatFilter> filter;
  return filter;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "ems", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(spdlog::level::debug);
    made->set_pattern(kTextPattern, spdlog::pattern_time_type::utc);
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

std::string Rendered(const LineOut& out) {
  const auto within = std::chrono::round<std::chrono::seconds>(out.within).count();
  if (is_json.load(std::memory_order_relaxed)) {
    std::string text = JsonOf(kLevelNames[static_cast<size_t>(out.level)], out.component, out.line);
    if (out.repeated > 0)
      text += fmt::format(",\"repeated\":{},\"repeated_s\":{}", out.repeated, within);
    return text;
  }
  std::string text = TextOf(out.component, out.line);
  if (out.repeated > 0) text += fmt::format(" (repeated {} times in {} s)", out.repeated, within);
  return text;
}

void Emit(const std::vector<LineOut>& lines) {
  constexpr std::array kToSpdlog = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                    spdlog::level::err};
  for (const LineOut& line : lines)
    Logger().log(kToSpdlog[static_cast<size_t>(line.level)], Rendered(line));
}

}  // namespace

Status Init(std::string_view level, std::string_view format) {
  if (format != "text" && format != "json") {
    return Error(StatusCode::kInvalidArgument, "log format \"{}\": text and json are known",
                 format);
  }
  const auto* const name = std::ranges::find(kLevelNames, level);
  if (name == kLevelNames.end()) {
    return Error(StatusCode::kInvalidArgument,
                 "log level \"{}\": debug, info, warn, error and off are known", level);
  }
  current_level.store(static_cast<Level>(name - kLevelNames.begin()), std::memory_order_relaxed);
  is_json.store(format == "json", std::memory_order_relaxed);
  Logger().set_pattern(format == "json" ? kJsonPattern : kTextPattern,
                       spdlog::pattern_time_type::utc);
  auto filter = Filter().Lock();
  *filter = RepeatFilter();
  return OkStatus();
}

bool Enabled(Level level) { return level >= current_level.load(std::memory_order_relaxed); }

void WriteLine(Level level, std::string_view folder, std::string_view format,
               fmt::format_args args) {
  LineOut line{.level = static_cast<int>(level),
               .component = std::string(folder),
               .line = MakeLogLine(format, args)};
  std::vector<LineOut> out;
  if (level == Level::kDebug) {
    out.push_back(std::move(line));
  } else {
    const uint64_t most = level == Level::kInfo ? kInfosMost : kTroublesMost;
    const TimePoint now = Clock::System().Now();
    auto filter = Filter().Lock();
    filter->Take(most, std::move(line), now, &out);
  }
  Emit(out);
}

void WriteHeldBack() {
  std::vector<LineOut> out;
  const TimePoint now = Clock::System().Now();
  {
    auto filter = Filter().Lock();
    filter->TakeDue(now, &out);
  }
  Emit(out);
}

void WriteAllHeldBack() {
  std::vector<LineOut> out;
  {
    auto filter = Filter().Lock();
    filter->TakeAll(&out);
  }
  Emit(out);
}

}  // namespace ems::log
