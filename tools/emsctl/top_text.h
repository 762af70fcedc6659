#pragma once
// What `emsctl top` shows: how counts of servers and namespaces have grown between two samples.
// Pure.
#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "tools/emsctl/server_counts.h"

namespace ems::emsctl {

struct Sample {
  TimePoint at{};
  std::map<std::string, ServerCounts> servers{};
  std::map<std::string, std::string> silent{};  // servers that did not answer, and why
  CountsByNamespace namespaces{};
};
Sample SampleOf(std::span<const ServerStats> servers, TimePoint at);

// Tables of servers and namespaces. A rate is shown where both samples have the counts and the
// server was not started again in between.
std::string TopText(const Sample& before, const Sample& now);
nlohmann::ordered_json TopJson(const Sample& before, const Sample& now);

// What of `text` fits on a screen: lines are cut at `columns`, and from `rows` on left out, which
// the last line says. 0: no limit.
std::string Fitted(std::string_view text, size_t columns, size_t rows);

}  // namespace ems::emsctl
