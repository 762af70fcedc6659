// The one door to yaml-cpp: text → events → a small tree with line numbers → fields of a message,
// by reflection.
//
// Invariant: a field is only ever set through SetScalar, which checks its type, range and words.
// Bound: 1 MiB of text, 32 levels, 1000 keys a section, 4096 bytes a value.
#include "common/config.h"

#include <fmt/ranges.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/config_options.pb.h"
#include "common/host_port.h"
#include "common/nearest_word.h"

namespace ems::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kTextBytesMax = 1 << 20;
constexpr size_t kLevelsMax = 32;
constexpr size_t kKeysMax = 1000;
constexpr size_t kValueBytesMax = 4096;

const Option& OptionOf(const FieldDescriptor* field) {
  return field->options().GetExtension(option);
}

bool IsSection(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

template <typename... Args>
Status Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// One value of the YAML text and where it stands.
struct Item {
  enum class Kind { kNull, kScalar, kMap, kList };
  Kind kind = Kind::kNull;
  int line = 0;  // from 1
  std::string scalar{};
  std::vector<std::pair<std::string, Item>> entries{};  // of a map, in order
};

// Builds the tree. After the first fault it ignores the rest, so that it needs no exception of its
// own. Threading: one thread.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string_view name) : name_(name) {}
  const Status& fault() const { return fault_; }
  Item& root() { return root_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) Fail(mark, "a second document starts here: one is allowed");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!Refuses(mark, "", anchor)) Place(mark, {.line = mark.line + 1});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Fail(mark, "anchors (&) and aliases (*) are not allowed");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (Refuses(mark, tag, anchor)) return;
    if (ExpectsKey()) return TakeKey(mark, value);
    Place(mark, {.kind = Item::Kind::kScalar, .line = mark.line + 1, .scalar = value});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, Item::Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, Item::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    Item* item;
    std::optional<std::string> key;  // read, its value not yet
  };

  void Fail(const YAML::Mark& mark, std::string_view what) {
    if (fault_.ok()) fault_ = Invalid("{}:{}: {}", name_, mark.line + 1, what);
  }
  bool Refuses(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) Fail(mark, "anchors (&) and aliases (*) are not allowed");
    if (!tag.empty() && tag != "?" && tag != "!") Fail(mark, "tags (!) are not allowed");
    return !fault_.ok();
  }
  bool ExpectsKey() const {
    return !levels_.empty() && levels_.back().item->kind == Item::Kind::kMap &&
           !levels_.back().key.has_value();
  }
  void TakeKey(const YAML::Mark& mark, const std::string& key) {
    const auto& entries = levels_.back().item->entries;
    if (entries.size() >= kKeysMax) {
      return Fail(mark, fmt::format("more than {} keys in one section", kKeysMax));
    }
    const auto same = std::find_if(entries.begin(), entries.end(),
                                   [&](const auto& entry) { return entry.first == key; });
    if (same != entries.end()) {
      return Fail(mark, fmt::format("key \"{}\" is given twice, first on line {}", Printable(key),
                                    same->second.line));
    }
    levels_.back().key = key;
  }
  // Puts `item` where the text has it; null after a fault. Lists keep nothing: no option is one.
  Item* Place(const YAML::Mark& mark, Item item) {
    if (levels_.empty()) {
      root_ = std::move(item);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.item->kind == Item::Kind::kMap && !level.key.has_value()) {
      Fail(mark, "a key must be a plain word");
      return nullptr;
    }
    if (level.item->kind == Item::Kind::kList) level.item->entries.clear();
    level.item->entries.emplace_back(level.key.value_or(""), std::move(item));
    level.key.reset();
    return &level.item->entries.back().second;
  }
  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Item::Kind kind) {
    if (Refuses(mark, tag, anchor)) return;
    if (levels_.size() >= kLevelsMax) {
      return Fail(mark, fmt::format("nested deeper than {} levels", kLevelsMax));
    }
    Item* item = Place(mark, {.kind = kind, .line = mark.line + 1});
    if (item != nullptr) levels_.push_back({.item = item, .key = std::nullopt});
  }
  void Close() {
    if (fault_.ok()) levels_.pop_back();
  }

  const std::string_view name_;
  Status fault_;
  Item root_;
  std::vector<Level> levels_;  // open maps and lists; pointers hold since only the last one grows
  int documents_ = 0;
};

Result<Item> ParseYaml(std::string_view text, std::string_view name) {
  if (text.size() > kTextBytesMax) {
    return Invalid("{}: longer than {} B of configuration", name, kTextBytesMax);
  }
  TreeBuilder builder(name);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (builder.fault().ok() && parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    EMS_RETURN_IF_ERROR(builder.fault());
    return Invalid("{}:{}: not valid YAML: {}", name, std::max(0, e.mark.line) + 1, e.msg);
  } catch (const std::exception& e) {
    return Invalid("{}: not valid YAML: {}", name, e.what());
  }
  EMS_RETURN_IF_ERROR(builder.fault());
  return std::move(builder.root());
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

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string NumberText(double value) {
  return value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
}

// "1 to 10 ms", or empty.
std::string RangeText(const Option& marks) {
  if (marks.max() <= marks.min()) return "";
  if (marks.unit() == "bytes") {
    return fmt::format("{} to {}", FormatBytes(static_cast<uint64_t>(marks.min())),
                       FormatBytes(static_cast<uint64_t>(marks.max())));
  }
  return fmt::format("{} to {}{}{}", NumberText(marks.min()), NumberText(marks.max()),
                     marks.unit().empty() ? "" : " ", marks.unit());
}

// Where a value comes from and which key it is for, for errors.
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
  std::istringstream words(text);
  std::vector<std::string> addresses = {text};
  if (address.list()) addresses = {std::istream_iterator<std::string>(words), {}};
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

  Status TakeTree(const Item& root) {
    if (root.kind == Item::Kind::kNull) return OkStatus();
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
  Status TakeSection(const Item& item, const std::string& path, Message* message) {
    const std::string what = path.empty() ? "the file" : "\"" + path + "\"";
    if (item.kind != Item::Kind::kMap) {
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
      if (value.kind == Item::Kind::kNull) continue;  // a section whose keys are commented out
      EMS_RETURN_IF_ERROR(TakeSection(value, prefix + key,
                                      message->GetReflection()->MutableMessage(message, field)));
    }
    return OkStatus();
  }

  Status TakeValue(const Item& value, const Place& place, const FieldDescriptor* field,
                   Message* message) {
    if (value.kind == Item::Kind::kNull) {
      return Invalid("{}: \"{}\" has no value; write \"\" for an empty one", place.where,
                     place.key);
    }
    if (value.kind != Item::Kind::kScalar) {
      return Invalid("{}: \"{}\" must be a single value, not a {}", place.where, place.key,
                     value.kind == Item::Kind::kMap ? "section" : "list");
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

Status LoadText(std::string_view yaml, std::string_view name,
                const std::vector<std::string>& overrides, Message* message) {
  EMS_ASSIGN_OR_RETURN(const Item root, ParseYaml(yaml, name));
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

std::string Describe(const Message& message) {
  std::string out;
  DescribeSection(message.GetDescriptor(), "", &out);
  return out;
}

Result<uint32_t> ParseMode(std::string_view text) {
  uint32_t mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error == std::errc() && end == text.data() + text.size() && mode <= 0777) return mode;
  return Invalid("\"{}\" is not the mode of a file, octal and at most 0777; write such as 0660",
                 Printable(text));
}

std::string OneLine(const Message& message) {
  std::string out;
  OneLineSection(message, "", &out);
  return out;
}

}  // namespace ems::config
