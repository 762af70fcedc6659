#include "common/wall_time.h"

#include <fmt/core.h>

#include <chrono>
#include <regex>

namespace ems {

int64_t UnixMs() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

std::string TimeText(int64_t unix_ms) {
  using namespace std::chrono;
  const sys_time<milliseconds> at{milliseconds(unix_ms)};
  const auto midnight = floor<days>(at);
  const year_month_day date(midnight);
  const hh_mm_ss time(at - midnight);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     time.hours().count(), time.minutes().count(), time.seconds().count(),
                     time.subseconds().count());
}

std::optional<int64_t> ParseTime(std::string_view text) {
  using namespace std::chrono;
  static const std::regex form(R"((\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)"
                               R"((?:[Zz]|([+-])(\d\d):(\d\d)))");
  std::cmatch part;
  if (!std::regex_match(text.data(), text.data() + text.size(), part, form)) return std::nullopt;
  const auto number = [&](size_t i) { return part[i].matched ? std::stoi(part[i].str()) : 0; };
  const year_month_day date{year(number(1)), month(static_cast<unsigned>(number(2))),
                            day(static_cast<unsigned>(number(3)))};
  if (!date.ok() || number(4) > 23 || number(5) > 59 || number(6) > 60 || number(9) > 23 ||
      number(10) > 59)
    return std::nullopt;
  const minutes offset = hours(number(9)) + minutes(number(10));
  const std::string fraction = (part[7].str() + "000").substr(0, 3);
  const auto at = sys_days(date) + hours(number(4)) + minutes(number(5)) + seconds(number(6)) +
                  milliseconds(std::stoi(fraction)) + (part[8] == "-" ? offset : -offset);
  return duration_cast<milliseconds>(at.time_since_epoch()).count();
}

}  // namespace ems
