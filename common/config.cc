// Fills the fields of a message from a tree of YAML, by reflection.
//
// Invariant: a field is only ever set through SetScalar, which checks its type, range and words.
// Bound: 4096 bytes a value.
#include "common/config.h"

#include <fmt/ranges.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/config_options.pb.h"
#include "common/config_text.h"
#include "common/host_port.h"
#include "common/nearest_word.h"
#include "common/parse_number.h"
#include "common/yaml_tree.h"

namespace ems::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kValueBytesMax = 4096;

template <typename... Args>
Status Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

Status UnknownKey(std::string_view where, const std::string& path, std::string_view key,
                  const Descriptor* section) {
  std::vector<std::string> known;
  known.reserve(static_cast<size_t>(section->field_count()));
  for (int i = 0; i < section->field_count(); ++i) known.push_back(section->field(i)->name());
  const std::string nearest = NearestWord(key, known);
  const std::string hint = nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest);
  return Invalid("{}: unknown key \"{}{}\"{}; known keys here: {}", where, path, Printable(key),
                 hint, fmt::join(known, ", "));
}

// The line that a value comes from and the key that it is for, for errors.
struct Place {
  std::string where;  // "file:12" or "--set a.b=c"
  std::string key;    // "a.b"
};

Status CheckRange(const Option& marks, double value, std::string_view text, const Place& place) {
  if (marks.max() <= marks.min() || (value >= marks.min() && value <= marks.max())) {
    return OkStatus();
  }
  return Invalid("{}: \"{}\" is {}, allowed: {}", place.where, place.key, Printable(text),
                 RangeText(marks));
}

Status WrongType(const Place& place, std::string_view text, std::string_view wanted) {
  return Invalid("{}: \"{}\" is \"{}\": {} is wanted", place.where, place.key, Printable(text),
                 wanted);
}

Result<uint64_t> ParseUnsigned(const Option& marks, uint64_t most, std::string_view text,
                               const Place& place) {
  std::optional<uint64_t> value = ParseNumber<uint64_t>(text);
  const bool is_bytes = marks.unit() == "bytes";
  if (!value.has_value() && is_bytes) {
    const Result<uint64_t> bytes = ParseBytes(text);
    if (bytes.ok()) value = *bytes;
  }
  if (!value.has_value()) {
    return WrongType(place, text, is_bytes ? "a size such as 64MiB" : "a whole number from 0 up");
  }
  EMS_RETURN_IF_ERROR(CheckRange(marks, static_cast<double>(*value), text, place));
  if (*value > most) return Invalid("{}: \"{}\" is above {}", place.where, place.key, most);
  return *value;
}

Status CheckOneAddress(const Address& marks, std::string_view text) {
  constexpr std::string_view kUnix = "unix:";
  if (marks.or_unix() && text.starts_with(kUnix) && text.size() > kUnix.size()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(text));
  if (parsed.port != 0 || marks.listen()) return OkStatus();
  return Invalid("address \"{}\": nobody listens on port 0; write 1 to 65535", Printable(text));
}

Status CheckAddress(const Option& marks, const std::string& text, const Place& place) {
  const Address& address = marks.address();
  std::vector<std::string> addresses = {text};
  if (address.list()) addresses = SplitAddresses(text);
  if (addresses.empty() && address.needed()) addresses = {text};
  for (const std::string& one : addresses) {
    if (one.empty() && !address.needed()) continue;
    const Status checked = CheckOneAddress(address, one);
    if (checked.ok()) continue;
    return Invalid("{}: \"{}\": {}{}", place.where, place.key, ems::Message(checked),
                   marks.default_value().empty()
                       ? ""
                       : fmt::format("; the default is {}", marks.default_value()));
  }
  return OkStatus();
}

Status CheckText(const Option& marks, std::string_view text, const Place& place) {
  if (text.size() > kValueBytesMax) {
    return Invalid("{}: \"{}\" has {} B, at most {} are allowed", place.where, place.key,
                   text.size(), kValueBytesMax);
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control)) {
    return Invalid("{}: \"{}\" holds a control character: \"{}\"", place.where, place.key,
                   Printable(text));
  }
  if (marks.has_address()) return CheckAddress(marks, std::string(text), place);
  if (marks.mode())
    return Prefixed(ParseMode(text).status(), fmt::format("{}: \"{}\"", place.where, place.key));
  if (marks.one_of().empty()) return OkStatus();
  std::istringstream words(marks.one_of());
  for (std::string word; words >> word;) {
    if (word == text) return OkStatus();
  }
  return Invalid("{}: \"{}\" is \"{}\", allowed: {}", place.where, place.key, Printable(text),
                 marks.one_of());
}

// Sets `field`, which is no section, from its text.
Status SetScalar(Message* message, const FieldDescriptor* field, const std::string& text,
                 const Place& place) {
  const Option& marks = OptionOf(field);
  const auto* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: {
      EMS_RETURN_IF_ERROR(CheckText(marks, text, place));
      reflection->SetString(message, field, text);
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      EMS_ASSIGN_OR_RETURN(const uint64_t value, ParseUnsigned(marks, UINT32_MAX, text, place));
      reflection->SetUInt32(message, field, static_cast<uint32_t>(value));
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      EMS_ASSIGN_OR_RETURN(const uint64_t value, ParseUnsigned(marks, UINT64_MAX, text, place));
      reflection->SetUInt64(message, field, value);
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const std::optional<double> value = ParseNumber<double>(text);
      if (!value.has_value() || !std::isfinite(*value)) return WrongType(place, text, "a number");
      EMS_RETURN_IF_ERROR(CheckRange(marks, *value, text, place));
      reflection->SetDouble(message, field, *value);
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      if (text != "true" && text != "false") return WrongType(place, text, "true or false");
      reflection->SetBool(message, field, text == "true");
      return OkStatus();
    }
    default:
      break;
  }
  EMS_CHECK(false, "option {} has a type that configuration does not know", field->full_name());
}

void SetDefaults(Message* message) {
  const Descriptor* section = message->GetDescriptor();
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    EMS_CHECK(!field->is_repeated(), "option {} is a list", field->full_name());
    if (IsSection(field)) {
      SetDefaults(message->GetReflection()->MutableMessage(message, field));
    } else if (!OptionOf(field).default_value().empty()) {
      const Status status = SetScalar(message, field, OptionOf(field).default_value(),
                                      {.where = "default", .key = field->name()});
      EMS_CHECK(status.ok(), "{}", ToString(status));
    }
  }
}

// One load: the message being filled and the keys set so far. Threading: one thread.
class Loader final {
 public:
  Loader(std::string_view name, Message* message) : name_(name), message_(message) {}

  Status TakeTree(const YamlItem& root) {
    if (root.kind == YamlItem::Kind::kNull) return OkStatus();
    return TakeSection(root, "", message_);
  }

  // "a.b=c"
  Status TakeOverride(const std::string& text) {
    const std::string where = fmt::format("--set {}", Printable(text, 128));
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Invalid("{}: write it as key=value or section.key=value", where);
    }
    const std::string path = text.substr(0, equals);
    Message* section = message_;
    size_t begin = 0;
    while (true) {
      const size_t dot = path.find('.', begin);
      const bool last = dot == std::string::npos;
      const std::string key = path.substr(begin, last ? std::string::npos : dot - begin);
      const auto* field = section->GetDescriptor()->FindFieldByName(key);
      if (field == nullptr || (!last && !IsSection(field))) {
        return UnknownKey(where, path.substr(0, begin), field == nullptr ? key : path.substr(begin),
                          section->GetDescriptor());
      }
      if (last && IsSection(field)) {
        return Invalid("{}: \"{}\" is a section: set a key of it, \"{}.key=value\"", where, path,
                       path);
      }
      if (last) {
        EMS_RETURN_IF_ERROR(
            SetScalar(section, field, text.substr(equals + 1), {.where = where, .key = path}));
        set_.insert(path);
        return OkStatus();
      }
      section = section->GetReflection()->MutableMessage(section, field);
      begin = dot + 1;
    }
  }

  Status CheckRequired() const { return CheckRequired(*message_, ""); }

 private:
  Status TakeSection(const YamlItem& item, const std::string& path, Message* message) {
    const std::string what = path.empty() ? "the file" : "\"" + path + "\"";
    if (item.kind != YamlItem::Kind::kMap) {
      return Invalid("{}:{}: {} must be a section of \"key: value\" lines", name_, item.line, what);
    }
    const std::string prefix = path.empty() ? "" : path + ".";
    for (const auto& [key, value] : item.entries) {
      const std::string where = fmt::format("{}:{}", name_, value.line);
      const auto* field = message->GetDescriptor()->FindFieldByName(key);
      if (field == nullptr) return UnknownKey(where, prefix, key, message->GetDescriptor());
      if (!IsSection(field)) {
        EMS_RETURN_IF_ERROR(
            TakeValue(value, {.where = where, .key = prefix + key}, field, message));
        continue;
      }
      if (value.kind == YamlItem::Kind::kNull) continue;  // a section whose keys are commented out
      EMS_RETURN_IF_ERROR(TakeSection(value, prefix + key,
                                      message->GetReflection()->MutableMessage(message, field)));
    }
    return OkStatus();
  }

  Status TakeValue(const YamlItem& value, const Place& place, const FieldDescriptor* field,
                   Message* message) {
    if (value.kind == YamlItem::Kind::kNull) {
      return Invalid("{}: \"{}\" has no value; write \"\" for an empty one", place.where,
                     place.key);
    }
    if (value.kind != YamlItem::Kind::kScalar) {
      return Invalid("{}: \"{}\" must be a single value, not a {}", place.where, place.key,
                     value.kind == YamlItem::Kind::kMap ? "section" : "list");
    }
    EMS_RETURN_IF_ERROR(SetScalar(message, field, value.scalar, place));
    set_.insert(place.key);
    return OkStatus();
  }

  Status CheckRequired(const Message& message, const std::string& prefix) const {
    const Descriptor* section = message.GetDescriptor();
    const auto* reflection = message.GetReflection();
    for (int i = 0; i < section->field_count(); ++i) {
      const FieldDescriptor* field = section->field(i);
      const std::string key = prefix + field->name();
      if (IsSection(field)) {
        EMS_RETURN_IF_ERROR(CheckRequired(reflection->GetMessage(message, field), key + "."));
        continue;
      }
      if (!OptionOf(field).required()) continue;
      const bool empty = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
                         reflection->GetString(message, field).empty();
      if (set_.contains(key) && !empty) continue;
      return Invalid("{}: key \"{}\" is required: {}", name_, key, OptionOf(field).help());
    }
    return OkStatus();
  }

  const std::string_view name_;
  Message* const message_;
  std::set<std::string> set_;
};

Result<std::string> ReadText(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Error(StatusCode::kNotFound, "{}: no such file", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kTextBytesMax + 1, '\0');
  if (std::filesystem::is_directory(path, error) || !file ||
      (file.read(text.data(), static_cast<std::streamsize>(text.size())), file.bad())) {
    return Invalid("{}: cannot be read: is it a file, and readable for this user?", path);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

Status LoadText(std::string_view yaml, std::string_view name,
                const std::vector<std::string>& overrides, Message* message) {
  EMS_ASSIGN_OR_RETURN(const YamlItem root, ParseYaml(yaml, name));
  message->Clear();
  SetDefaults(message);
  Loader loader(name, message);
  EMS_RETURN_IF_ERROR(loader.TakeTree(root));
  for (const std::string& one : overrides) EMS_RETURN_IF_ERROR(loader.TakeOverride(one));
  return loader.CheckRequired();
}

Status Load(const std::string& path, const std::vector<std::string>& overrides, Message* message) {
  if (path.empty()) return LoadText("", "configuration", overrides, message);
  EMS_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return LoadText(text, path, overrides, message);
}

Result<uint32_t> ParseMode(std::string_view text) {
  const auto mode = ParseNumber<uint32_t>(text, 8);
  if (mode && *mode <= 0777) return *mode;
  return Invalid("\"{}\" is not the mode of a file, octal and at most 0777; write such as 0660",
                 Printable(text));
}

}  // namespace ems::config
