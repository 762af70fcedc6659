#include "tools/emsctl/events_text.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "common/bytes.h"
#include "common/wall_time.h"
#include "proto/controller.pb.h"

namespace ems::emsctl {

std::optional<Since> ParseSince(std::string_view text) {
  if (const auto at = ParseTime(text)) return Since{.unix_ms = *at};
  uint64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  constexpr std::string_view kUnits = "smhd";
  constexpr std::array<uint64_t, 4> kUnitMs = {1000, 60'000, 3'600'000, 86'400'000};
  constexpr uint64_t kMost = 100'000'000;
  if (error != std::errc() || end - stop != 1 || count == 0 || count > kMost) return std::nullopt;
  const size_t unit = kUnits.find(*stop);
  if (unit == std::string_view::npos) return std::nullopt;
  return Since{.age_ms = count * kUnitMs.at(unit)};
}

std::string EventText(const v1::ClusterEvent& event) {
  return fmt::format("{}  {:<18}  {}\n", TimeText(event.unix_ms()), event.kind(),
                     Printable(event.text(), 1000));
}

nlohmann::ordered_json EventJson(const v1::ClusterEvent& event) {
  return {
      {"sequence", event.sequence()}, {"time", TimeText(event.unix_ms())}, {"kind", event.kind()},
      {"node", event.node()},         {"namespace", event.name_space()},   {"text", event.text()}};
}

}  // namespace ems::emsctl
