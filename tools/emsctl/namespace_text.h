#pragma once
// Namespaces as people and scripts read them. Pure.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cluster/view_cache.h"

namespace ems::emsctl {

std::string NamespacesText(const std::vector<NamespaceInfo>& namespaces);
nlohmann::ordered_json NamespaceJson(const NamespaceInfo& info);

}  // namespace ems::emsctl
