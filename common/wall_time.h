#pragma once
// The wall clock, for people and logs: nothing is decided by it.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ems {

// Milliseconds since 1970 (UTC).
int64_t UnixMs();
// "2026-11-27T12:21:18.788Z" (RFC 3339, UTC).
std::string TimeText(int64_t unix_ms);
// Of RFC 3339 with any offset and up to nanoseconds, which are cut. nullopt: it is no such time.
std::optional<int64_t> ParseTime(std::string_view text);

}  // namespace ems
