#include "tools/emsctl/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kLevelWords = {"OK", "WARN", "FAIL"};

std::string_view WordOf(Level level) { return kLevelWords[static_cast<size_t>(level)]; }

// What the kernel and servers say may have lines.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

Level WorstOf(std::span<const Finding> findings) {
  Level worst = Level::kOk;
  for (const Finding& one : findings) worst = std::max(worst, one.level);
  return worst;
}

std::string FindingsText(std::span<const Finding> findings) {
  size_t width = 0;
  for (const Finding& one : findings) width = std::max(width, terminal::Width(one.check));
  std::array<size_t, kLevelWords.size()> counts{};
  std::string text;
  for (const Finding& one : findings) {
    ++counts[static_cast<size_t>(one.level)];
    text += fmt::format("{:<4}  {:<{}}  {}{}{}\n", WordOf(one.level), one.check, width,
                        OneLine(one.found), one.mend.empty() ? "" : ": ", OneLine(one.mend));
  }
  return text + fmt::format("{} OK, {} WARN, {} FAIL\n", counts[0], counts[1], counts[2]);
}

Json FindingsJson(std::span<const Finding> findings) {
  Json json;
  json["result"] = WordOf(WorstOf(findings));
  json["checks"] = Json::array();
  for (const Finding& one : findings) {
    json["checks"].push_back({{"check", one.check},
                              {"level", WordOf(one.level)},
                              {"found", one.found},
                              {"mend", one.mend}});
  }
  return json;
}

}  // namespace ems::emsctl
