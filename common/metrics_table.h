#pragma once
// A table of metrics for people, made of a Prometheus text: so it cannot differ from what is shown.
#include <string>
#include <string_view>

namespace ems {

// For each metric of `text`, in the order of their names, a line `name{labels} type` and a line
// with its help. Labels are those of the metric's first row, but for `le`.
std::string MetricsTable(std::string_view text);

}  // namespace ems
