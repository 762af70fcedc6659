#include "common/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "common/bytes.h"

namespace ems::config {
namespace {

constexpr size_t kLevelsMax = 32;
constexpr size_t kKeysMax = 1000;

template <typename... Args>
Status Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// Builds the tree. After the first fault it ignores the rest, so that it needs no exception of its
// own. Threading: one thread.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string_view name) : name_(name) {}
  const Status& fault() const { return fault_; }
  YamlItem& root() { return root_; }

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
    Place(mark, {.kind = YamlItem::Kind::kScalar, .line = mark.line + 1, .scalar = value});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlItem::Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlItem::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    YamlItem* item;
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
    return !levels_.empty() && levels_.back().item->kind == YamlItem::Kind::kMap &&
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
  YamlItem* Place(const YAML::Mark& mark, YamlItem item) {
    if (levels_.empty()) {
      root_ = std::move(item);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.item->kind == YamlItem::Kind::kMap && !level.key.has_value()) {
      Fail(mark, "a key must be a plain word");
      return nullptr;
    }
    if (level.item->kind == YamlItem::Kind::kList) level.item->entries.clear();
    level.item->entries.emplace_back(level.key.value_or(""), std::move(item));
    level.key.reset();
    return &level.item->entries.back().second;
  }
  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlItem::Kind kind) {
    if (Refuses(mark, tag, anchor)) return;
    if (levels_.size() >= kLevelsMax) {
      return Fail(mark, fmt::format("nested deeper than {} levels", kLevelsMax));
    }
    YamlItem* item = Place(mark, {.kind = kind, .line = mark.line + 1});
    if (item != nullptr) levels_.push_back({.item = item, .key = std::nullopt});
  }
  void Close() {
    if (fault_.ok()) levels_.pop_back();
  }

  const std::string_view name_;
  Status fault_;
  YamlItem root_;
  std::vector<Level> levels_;  // open maps and lists; pointers hold since only the last one grows
  int documents_ = 0;
};

}  // namespace

Result<YamlItem> ParseYaml(std::string_view text, std::string_view name) {
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

}  // namespace ems::config
