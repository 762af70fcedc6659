#include "tools/emsctl/curve_text.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/bytes.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

constexpr double kBarWidth = 40;
constexpr size_t kTwice = 3;  // of kCurveMemories
static_assert(kCurveMemories[kTwice] == 2);

std::string Percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

uint64_t MemoryOf(const HitCurve& curve, size_t i) {
  return static_cast<uint64_t>(kCurveMemories[i] * static_cast<double>(curve.memory_bytes));
}

std::string BarOf(double share) {
  return std::string(static_cast<size_t>(std::lround(share * kBarWidth)), '#');
}

}  // namespace

std::string CurveText(const std::string& name, const std::optional<HitCurve>& curve) {
  if (!curve) return fmt::format("namespace {}: nothing was looked up yet\n", name);
  std::string text = fmt::format("namespace {}: {} of {} look-ups, lately, hit in DRAM\n", name,
                                 Percent(curve->hit_rate()), curve->lookups);
  if (!curve->enough) {
    return text + fmt::format(
                      "There are not enough samples for an estimate: {} look-ups of a sixteenth of "
                      "the keys. A server needs 1000, of 64 objects.\n",
                      curve->samples);
  }
  Table table({{"memory"}, {""}, {"would hit"}, {"", Align::kLeft}});
  for (size_t i = 0; i < kCurveMemories.size(); ++i) {
    table.AddRow({FormatBytes(MemoryOf(*curve, i)), fmt::format("{}x", kCurveMemories[i]),
                  Percent(curve->estimates[i]), BarOf(curve->estimates[i])});
  }
  return text + "\n" + table.Render() +
         fmt::format(
             "\nWith 2x the memory {} of look-ups would hit (today {}). {} sampled "
             "look-ups, the last one {} s ago.\n",
             Percent(curve->estimates[kTwice]), Percent(curve->hit_rate()), curve->samples,
             curve->age_s);
}

Json CurveJson(const std::string& name, const std::optional<HitCurve>& curve) {
  const HitCurve known = curve.value_or(HitCurve());
  Json json{{"name", name},
            {"memory_bytes", known.memory_bytes},
            {"lookups", known.lookups},
            {"hits", known.hits},
            {"hit_rate", known.hit_rate()},
            {"samples", known.samples},
            {"age_s", known.age_s},
            {"estimates", nullptr}};
  if (!known.enough) return json;
  json["estimates"] = Json::array();
  for (size_t i = 0; i < kCurveMemories.size(); ++i) {
    json["estimates"].push_back({{"memory", kCurveMemories[i]},
                                 {"memory_bytes", MemoryOf(known, i)},
                                 {"hit_rate", known.estimates[i]}});
  }
  return json;
}

}  // namespace ems::emsctl
