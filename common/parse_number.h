#pragma once
// A number as text, and nothing else.
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace ems {

// Nothing: `text` is empty, is not all of it a number in `base`, or one that Number cannot hold.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text, int base = 10) {
  Number value{};
  const char* const last = text.data() + text.size();
  std::from_chars_result parsed;
  if constexpr (std::is_floating_point_v<Number>)
    parsed = std::from_chars(text.data(), last, value);
  else
    parsed = std::from_chars(text.data(), last, value, base);
  if (parsed.ec != std::errc() || parsed.ptr != last) return std::nullopt;
  return value;
}

}  // namespace ems
