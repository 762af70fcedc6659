#pragma once
// One line of a log before it is written: its text, and the key=value fields in it, which are found
// in the format string. So a value never makes a field, whatever bytes it has.
#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ems::log {

struct LogField {
  std::string name;
  std::string value{};
  bool is_number = false;  // or true or false: JSON has it without quotes
};

// Threading: one thread (holder).
struct LogLine {
  std::string text;          // all of it: "view published epoch=7"
  size_t message_bytes = 0;  // of `text`, before the fields that end it: "view published"
  std::vector<LogField> fields{};
  // Equal for lines that differ in values of fields and in digits alone.
  uint64_t kind = 0;
};

// A field is NAME={…} or NAME="…" behind a blank, or at the start. `format` is one that fmt has
// checked. Cost: O(bytes), allocates.
LogLine MakeLogLine(std::string_view format, fmt::format_args args);

// "COMPONENT: TEXT", control characters as \xNN, so that a line stays one.
std::string TextOf(std::string_view component, const LogLine& line);
// `"level":…,"component":…,"message":…` and the fields, without braces. What is not UTF-8 becomes
// U+FFFD. A field whose name is taken stays in the message.
std::string JsonOf(std::string_view level, std::string_view component, const LogLine& line);

}  // namespace ems::log
