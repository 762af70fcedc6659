#include "common/config_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cmath>

#include "common/bytes.h"
#include "common/config_options.pb.h"

namespace ems::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string NumberText(double value) {
  return value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
}

std::string ValueText(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return fmt::format("{}", reflection->GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return fmt::format("{}", reflection->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fmt::format("{}", reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    default:
      return "?";
  }
}

void DescribeSection(const Descriptor* section, const std::string& prefix, std::string* out) {
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    const std::string key = prefix + field->name();
    if (IsSection(field)) {
      DescribeSection(field->message_type(), key + ".", out);
      continue;
    }
    const Option& marks = OptionOf(field);
    std::string line = fmt::format("{:<30} {}", key, marks.help());
    if (!marks.one_of().empty()) line += fmt::format(" [{}]", marks.one_of());
    if (const std::string range = RangeText(marks); !range.empty()) {
      line += fmt::format(" [{}]", range);
    } else if (!marks.unit().empty()) {
      line += fmt::format(" [{}]", marks.unit());
    }
    if (marks.required()) {
      line += " (required)";
    } else {
      line +=
          marks.default_value().empty() ? "" : fmt::format(" (default {})", marks.default_value());
    }
    *out += line + "\n";
  }
}

// In double quotes, as a value may be a word of YAML or hold its signs. Values hold no control
// characters.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

void YamlSection(const Message& message, const std::string& indent, std::string* out) {
  const Descriptor* section = message.GetDescriptor();
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    *out += indent + field->name() + ":";
    if (IsSection(field)) {
      *out += "\n";
      YamlSection(message.GetReflection()->GetMessage(message, field), indent + "  ", out);
      continue;
    }
    const std::string value = ValueText(message, field);
    const bool text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    *out += fmt::format(" {}\n", text ? Quoted(value) : value);
  }
}

void OneLineSection(const Message& message, const std::string& prefix, std::string* out) {
  const Descriptor* section = message.GetDescriptor();
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    const std::string key = prefix + field->name();
    if (IsSection(field)) {
      OneLineSection(message.GetReflection()->GetMessage(message, field), key + ".", out);
      continue;
    }
    std::string value = ValueText(message, field);
    if (value.empty() || value.find(' ') != std::string::npos) value = "\"" + value + "\"";
    *out += (out->empty() ? "" : " ") + key + "=" + value;
  }
}

}  // namespace

const Option& OptionOf(const FieldDescriptor* field) {
  return field->options().GetExtension(option);
}

bool IsSection(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

std::string RangeText(const Option& marks) {
  if (marks.max() <= marks.min()) return "";
  if (marks.unit() == "bytes") {
    return fmt::format("{} to {}", FormatBytes(static_cast<uint64_t>(marks.min())),
                       FormatBytes(static_cast<uint64_t>(marks.max())));
  }
  return fmt::format("{} to {}{}{}", NumberText(marks.min()), NumberText(marks.max()),
                     marks.unit().empty() ? "" : " ", marks.unit());
}

std::string Describe(const Message& message) {
  std::string out;
  DescribeSection(message.GetDescriptor(), "", &out);
  return out;
}

std::string Yaml(const Message& message) {
  std::string out;
  YamlSection(message, "", &out);
  return out;
}

std::string OneLine(const Message& message) {
  std::string out;
  OneLineSection(message, "", &out);
  return out;
}

}  // namespace ems::config
