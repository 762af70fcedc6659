#pragma once
// What other amounts of memory would bring to a namespace, as people and scripts read it. Pure.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cluster/hit_curve.h"

namespace ems::emsctl {

// A table with bars and a sentence; without an estimate, why there is none. Nothing: no server has
// counted a look-up.
std::string CurveText(const std::string& name, const std::optional<HitCurve>& curve);
// "estimates" is null where there is no estimate.
nlohmann::ordered_json CurveJson(const std::string& name, const std::optional<HitCurve>& curve);

}  // namespace ems::emsctl
