#pragma once
// Byte spans, and byte counts as people write them.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

inline ConstBytes AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// "64MiB", "1.5 GB", "4096", "10k" → bytes. Powers of 1024 with an i, of 1000 without.
// Errors: kInvalidArgument  not a number, unknown unit, negative or above 2^63
Result<uint64_t> ParseBytes(std::string_view text);
// 67108864 → "64 MiB"; exact multiples have no decimals, others one.
std::string FormatBytes(uint64_t bytes);
// Lower-case hexadecimal, two characters a byte.
std::string ToHex(ConstBytes bytes);
// Printable ASCII as it is, the rest as \xNN; at most `chars_max` characters, then "…".
std::string Printable(std::string_view text, size_t chars_max = 64);

}  // namespace ems
