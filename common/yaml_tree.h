#pragma once
// The one door to yaml-cpp: YAML text → a small tree with line numbers.
//
// Bound: 1 MiB of text, 32 levels, 1000 keys a section. Anchors, aliases, tags, a second document
// and a key that is given twice are refused: a configuration needs none of them.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace ems::config {

inline constexpr size_t kTextBytesMax = 1 << 20;

// One value of the text and where it stands.
struct YamlItem {
  enum class Kind { kNull, kScalar, kMap, kList };
  Kind kind = Kind::kNull;
  int line = 0;  // from 1
  std::string scalar{};
  std::vector<std::pair<std::string, YamlItem>> entries{};  // of a map, in order
};

// `name` stands for the file in errors. Lists keep nothing but that they are lists: no option is
// one. Errors: kInvalidArgument  naming the line
Result<YamlItem> ParseYaml(std::string_view text, std::string_view name);

}  // namespace ems::config
