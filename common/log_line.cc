#include "common/log_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "common/bytes.h"
#include "common/hash.h"

namespace ems::log {
namespace {

using Json = nlohmann::ordered_json;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '_' || c == '.';
}

struct IsNumber {
  template <typename T>
  bool operator()(T) const {
    return std::is_arithmetic_v<T> && !std::is_same_v<T, char>;
  }
};

// Goes through a format string once. Threading: one thread.
class LineMaker final {
 public:
  LineMaker(std::string_view format, fmt::format_args args) : format_(format), args_(args) {}

  LogLine Make() {
    while (at_ < format_.size()) {
      const char c = format_[at_];
      if (c == '{' && Peek(1) != '{') {
        AddValue();
      } else {
        if (c == '{' || c == '}') ++at_;  // doubled
        AddLiteral(c);
      }
    }
    EndField();
    line_.message_bytes = MessageBytes();
    line_.kind = Hash64(AsBytes(kind_));
    return std::move(line_);
  }

 private:
  // In the text, quotes included.
  struct Extent {
    size_t begin = 0;
    size_t end = 0;
  };

  // Of the format, `ahead` of what is read; a blank beyond its end.
  char Peek(size_t ahead) const {
    return at_ + ahead < format_.size() ? format_[at_ + ahead] : ' ';
  }

  void AddLiteral(char c) {
    if (in_field_ && !quoted_ && EndsField(c)) EndField();
    line_.text += c;
    ++at_;
    if (in_field_) {
      if (quoted_ && c == '"') return EndField();
      line_.fields.back().value += c;
      line_.fields.back().is_number = false;
    } else {
      kind_ += c;
      if (c == '=') BeginField();
    }
  }

  // Punctuation belongs to the sentence when a blank follows.
  bool EndsField(char c) const {
    return c == ' ' || ((c == ',' || c == ';' || c == ':' || c == ')') && Peek(1) == ' ');
  }

  // Behind a "=": if there is a name before it, and no part of that comes from a value.
  void BeginField() {
    const std::string& text = line_.text;
    size_t begin = text.size() - 1;
    while (begin > value_end_ && IsName(text[begin - 1])) --begin;
    if (begin + 1 == text.size() || (begin > 0 && text[begin - 1] != ' ')) return;
    line_.fields.push_back({.name = text.substr(begin, text.size() - 1 - begin)});
    extents_.push_back({.begin = begin});
    in_field_ = true;
    quoted_ = Peek(0) == '"';
    if (!quoted_) return;
    line_.text += '"';
    ++at_;
  }

  void EndField() {
    if (std::exchange(in_field_, false)) extents_.back().end = line_.text.size();
  }

  // What fmt makes of one argument.
  void AddValue() {
    size_t end = at_ + 1;
    for (int depth = 1; depth > 0; ++end)
      depth += format_[end] == '{' ? 1 : (format_[end] == '}' ? -1 : 0);
    const std::string_view inner = format_.substr(at_ + 1, end - at_ - 2);
    at_ = end;
    const size_t colon = std::min(inner.find(':'), inner.size());
    int index = 0;
    if (std::from_chars(inner.data(), inner.data() + colon, index).ptr == inner.data())
      index = next_++;
    std::string spec(inner.substr(colon));
    // Widths that are arguments, too.
    for (size_t at = 0; (at = spec.find("{}", at)) != std::string::npos; ++at)
      spec.insert(at + 1, std::to_string(next_++));
    Add(fmt::vformat(fmt::format("{{{}{}}}", index, spec), args_),
        spec.empty() && fmt::visit_format_arg(IsNumber(), args_.get(index)));
  }

  void Add(const std::string& value, bool is_number) {
    line_.text += value;
    value_end_ = line_.text.size();
    if (in_field_) {
      LogField& field = line_.fields.back();
      field.is_number = is_number && field.value.empty() && !quoted_;
      field.value += value;
    } else {
      std::ranges::copy_if(value, std::back_inserter(kind_), [](char c) { return !IsDigit(c); });
    }
  }

  // Up to the fields that follow each other to the end.
  size_t MessageBytes() const {
    size_t end = line_.text.size();
    for (auto field = extents_.rbegin(); field != extents_.rend(); ++field) {
      if (field->end != end || field->begin == 0) break;
      end = field->begin - 1;
    }
    return end;
  }

  const std::string_view format_;
  const fmt::format_args args_;
  size_t at_ = 0;  // in format_
  int next_ = 0;   // argument
  LogLine line_;
  std::string kind_;
  std::vector<Extent> extents_;  // of the fields
  bool in_field_ = false;
  bool quoted_ = false;
  size_t value_end_ = 0;  // of the last one in the text
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

LogLine MakeLogLine(std::string_view format, fmt::format_args args) {
  return LineMaker(format, args).Make();
}

std::string TextOf(std::string_view component, const LogLine& line) {
  std::string text = fmt::format("{}: ", component);
  for (const char c : line.text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  return text;
}

std::string JsonOf(std::string_view level, std::string_view component, const LogLine& line) {
  Json json{{"level", level}, {"component", component}, {"message", ""}};
  size_t message_bytes = line.message_bytes;
  for (const LogField& field : line.fields) {
    if (field.name == "time" || json.contains(field.name)) {
      message_bytes = line.text.size();
      continue;
    }
    Json value = field.is_number ? Json::parse(field.value, nullptr, false) : Json(field.value);
    json[field.name] = value.is_discarded() ? Json(field.value) : std::move(value);
  }
  json["message"] = line.text.substr(0, message_bytes);
  const std::string object = Dump(json);
  return object.substr(1, object.size() - 2);
}

}  // namespace ems::log
