#include "common/nearest_word.h"

#include <algorithm>
#include <vector>

namespace ems {
namespace {

constexpr size_t kWordMax = 128;  // longer ones are no misspelling

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string NearestWord(std::string_view word, std::span<const std::string> known) {
  if (word.size() > kWordMax) return "";
  std::string nearest;
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& one : known) {
    const size_t distance = EditDistance(word, one);
    if (distance < best) best = distance, nearest = one;
  }
  return nearest;
}

}  // namespace ems
