#pragma once
// Arithmetic and text of figures, the same in all commands: times, rates, shares, medians.
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

constexpr double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }
constexpr double Millis(Duration time) { return Seconds(time) * 1e3; }
constexpr double Micros(Duration time) { return Seconds(time) * 1e6; }
// From a moment until now.
double SecondsSince(TimePoint begin);

// part / whole; 0 when there is no whole.
double Share(uint64_t part, uint64_t whole);
inline double Percent(uint64_t part, uint64_t whole) { return 100 * Share(part, whole); }
// 0 when there are none.
double Mean(const std::vector<double>& values);
double Median(std::vector<double> values);
// Median over the rounds of a[i] / b[i]; 0 when there is no pair.
double MedianRatio(const std::vector<double>& a, const std::vector<double>& b);
// Bytes in a time as 1e9 bytes a second; 0 when no time passed.
double GbPerSecond(uint64_t bytes, Duration time);

// "1.50"; "-" for what is not a number.
std::string Fixed(double value, int decimals);
// The same; "-" also for zero and less: there was nothing to measure.
std::string FixedAboveZero(double value, int decimals);
// "12.3 %" of 0.123.
std::string PercentText(double share, int decimals = 1);
// "3.42 GB/s"; "0.0123 GB/s" when slower.
std::string FormatGbps(double gb_per_second);
// Milliseconds with as many decimals as help: "0.0123", "1.234", "123.4".
std::string FormatMs(double ms);
// "64KiB": names of gates have no spaces.
std::string SizeName(uint64_t bytes);
// "s" unless there is one.
constexpr const char* Plural(uint64_t count) { return count == 1 ? "" : "s"; }

// Sizes that an option lists. Errors: kInvalidArgument  names the option, and what is not a size,
// or not within `least` and `most`, or not a multiple of `unit`
Result<std::vector<uint64_t>> ParseSizes(const char* option, const std::vector<std::string>& texts,
                                         uint64_t least, uint64_t most, uint64_t unit = 1);

}  // namespace ems::bench
