#pragma once
// Events of a cluster as people and scripts read them. Pure.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ems::v1 {
class ClusterEvent;
}

namespace ems::emsctl {

// From when on events are shown: one of both.
struct Since {
  uint64_t age_ms = 0;  // before now, by the controller's clock
  int64_t unix_ms = 0;
};
// "90s", "10m", "2h", "1d", or a time (RFC 3339). nullopt: it is neither.
std::optional<Since> ParseSince(std::string_view text);

// A line: time, kind, sentence. Control characters are escaped.
std::string EventText(const v1::ClusterEvent& event);
nlohmann::ordered_json EventJson(const v1::ClusterEvent& event);

}  // namespace ems::emsctl
