#include "bench/harness/figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/bytes.h"

namespace ems::bench {

double SecondsSince(TimePoint begin) { return Seconds(Clock::System().Now() - begin); }

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (b[i] > 0) ratios.push_back(a[i] / b[i]);
  return Median(std::move(ratios));
}

double GbPerSecond(uint64_t bytes, Duration time) {
  return time <= Duration::zero() ? 0 : static_cast<double>(bytes) / 1e9 / Seconds(time);
}

std::string Fixed(double value, int decimals) {
  return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, decimals);
}

std::string FixedAboveZero(double value, int decimals) {
  return value > 0 ? Fixed(value, decimals) : "-";
}

std::string PercentText(double share, int decimals) { return Fixed(100 * share, decimals) + " %"; }

std::string FormatGbps(double gb_per_second) {
  return Fixed(gb_per_second, gb_per_second > 0 && gb_per_second < 0.1 ? 4 : 2) + " GB/s";
}

std::string FormatMs(double ms) { return Fixed(ms, ms < 1 ? 4 : ms < 100 ? 3 : 1); }

std::string SizeName(uint64_t bytes) {
  std::string name = FormatBytes(bytes);
  std::erase(name, ' ');
  return name;
}

Result<std::vector<uint64_t>> ParseSizes(const char* option, const std::vector<std::string>& texts,
                                         uint64_t least, uint64_t most, uint64_t unit) {
  std::vector<uint64_t> sizes;
  for (const std::string& text : texts) {
    EMS_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
    if (bytes < least || bytes > most || bytes % unit != 0)
      return Error(StatusCode::kInvalidArgument, "{}: {} is not within {} and {}{}", option, text,
                   FormatBytes(least), FormatBytes(most),
                   unit == 1 ? "" : ", in steps of " + FormatBytes(unit));
    sizes.push_back(bytes);
  }
  return sizes;
}

}  // namespace ems::bench
