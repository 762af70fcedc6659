#pragma once
// Suggests a known word for a misspelt one.
#include <span>
#include <string>
#include <string_view>

namespace ems {

// The one of `known` that is the fewest letters away from `word`, and no more than a third of its
// letters (two of a short one); else, and when `word` is longer than 128 letters, empty.
std::string NearestWord(std::string_view word, std::span<const std::string> known);

}  // namespace ems
