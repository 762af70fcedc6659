#pragma once
// Namespaces as people and scripts read them. Pure.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cluster/view_cache.h"
#include "tools/emsctl/server_counts.h"

namespace ems::emsctl {

// Policies, one line a namespace.
std::string NamespacesText(const std::vector<NamespaceInfo>& namespaces);
nlohmann::ordered_json NamespaceJson(const NamespaceInfo& info);

// What they hold beside what they may, one line a namespace.
std::string NamespaceUsageText(const std::vector<NamespaceInfo>& namespaces,
                               const CountsByNamespace& counts);
// The policy, with what it holds: "objects", "dram_used_bytes" and so on.
nlohmann::ordered_json NamespaceUsageJson(const NamespaceInfo& info,
                                          const CountsByNamespace& counts);

}  // namespace ems::emsctl
