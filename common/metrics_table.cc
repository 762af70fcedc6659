#include "common/metrics_table.h"

#include <fmt/format.h>

#include <map>
#include <sstream>
#include <vector>

namespace ems {
namespace {

// The names of `{a="1",b="2"}`; values hold no quotes.
std::string LabelNames(std::string_view row) {
  std::vector<std::string_view> names;
  const size_t open = row.find('{');
  size_t at = open == std::string_view::npos ? row.size() : open + 1;
  while (at < row.size() && row[at] != '}') {
    const size_t equals = row.find("=\"", at);
    if (equals == std::string_view::npos) break;
    const std::string_view name = row.substr(at, equals - at);
    if (name != "le") names.push_back(name);
    at = row.find('"', equals + 2) + 1;
    if (at < row.size() && row[at] == ',') ++at;
  }
  return names.empty() ? "" : fmt::format("{{{}}}", fmt::join(names, ","));
}

}  // namespace

std::string MetricsTable(std::string_view text) {
  constexpr std::string_view kHelp = "# HELP ", kType = "# TYPE ";
  std::map<std::string, std::string> entries;
  std::istringstream lines{std::string(text)};
  std::string name, help, type;
  for (std::string line; std::getline(lines, line);) {
    const std::string_view row = line;
    if (row.starts_with(kHelp)) {
      const size_t end = row.find(' ', kHelp.size());
      name = row.substr(kHelp.size(), end - kHelp.size());
      help = row.substr(end + 1);
    } else if (row.starts_with(kType)) {
      type = row.substr(row.rfind(' ') + 1);
    } else {
      entries.try_emplace(name, fmt::format("{}{} {}\n  {}\n", name, LabelNames(row), type, help));
    }
  }
  std::string table;
  for (const auto& [key, entry] : entries) table += entry;
  return table;
}

}  // namespace ems
