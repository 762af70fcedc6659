#include "common/bytes.h"

#include <array>
#include <charconv>
#include <cmath>

namespace ems {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array kUnits = {
    Unit{"", 1},     Unit{"B", 1},     Unit{"k", 1e3},      Unit{"K", 1e3},
    Unit{"kB", 1e3}, Unit{"KB", 1e3},  Unit{"KiB", 0x1p10}, Unit{"Ki", 0x1p10},
    Unit{"M", 1e6},  Unit{"MB", 1e6},  Unit{"MiB", 0x1p20}, Unit{"Mi", 0x1p20},
    Unit{"G", 1e9},  Unit{"GB", 1e9},  Unit{"GiB", 0x1p30}, Unit{"Gi", 0x1p30},
    Unit{"T", 1e12}, Unit{"TB", 1e12}, Unit{"TiB", 0x1p40}, Unit{"Ti", 0x1p40}};

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (error != std::errc() || !std::isfinite(number) || number < 0) {
    return Error(StatusCode::kInvalidArgument, "\"{}\" is not a byte count such as 64MiB",
                 Printable(text));
  }
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = number * known.bytes;
    if (bytes >= 0x1p63) break;
    return static_cast<uint64_t>(std::llround(bytes));
  }
  return Error(
      StatusCode::kInvalidArgument,
      "\"{}\" is not a byte count: write a number and KiB, MiB, GiB, TiB or kB, MB, GB, TB",
      Printable(text));
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value)) return fmt::format("{:.0f} {}", value, kNames[unit]);
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string ToHex(ConstBytes bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    hex.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    hex.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return hex;
}

std::string Printable(std::string_view text, size_t chars_max) {
  std::string out;
  for (char c : text) {
    if (out.size() >= chars_max) return out + "…";
    if (c >= 0x20 && c < 0x7f && c != '\\') {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace ems
