#pragma once
// Walks JSON without building a tree: a header of 100 MB costs its names, not a gigabyte of nodes.
// Stricter than the library below it: a key that an object has twice is an error (a tree would keep
// one of them silently), so is a zero byte, which the library takes for the end of the text.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::model {

inline constexpr size_t kJsonDepthMax = 16;

// A whole number is uint64_t, or int64_t when negative; anything else, and whatever exceeds 64
// bits, is a double.
using JsonScalar = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string_view>;

// The position of the walk.
struct JsonPlace {
  std::span<const std::string> keys;  // of the objects around the value, outermost first
  size_t arrays = 0;                  // how many arrays are around it
};

// Told of each value in the order of the text. Any error ends the walk. What it is given is valid
// during the call.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual Status OnOpen(const JsonPlace& place, bool is_object) = 0;
  virtual Status OnClose(const JsonPlace& place, bool is_object) = 0;  // the place of OnOpen
  virtual Status OnScalar(const JsonPlace& place, const JsonScalar& value) = 0;
};

// Errors: kInvalidArgument  no JSON, not UTF-8, a key twice, deeper than kJsonDepthMax; and the
// visitor's own. Cost: O(n), memory for the keys of the open objects.
Status WalkJson(std::string_view text, JsonVisitor* visitor);

}  // namespace ems::model
