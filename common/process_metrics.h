#pragma once
// What is known of any process, as Prometheus text: ems_build_info, and the usual process_… of
// Prometheus clients.
#include <string>

namespace ems {

// Appends them. Cost: some files of /proc; grows with the number of open descriptors.
void AppendProcessMetrics(std::string* text);

}  // namespace ems
