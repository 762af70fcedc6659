#pragma once
// The filter between a model's bytes and a client's text: stop strings end the text and are never
// sent, not even in part; characters are sent whole, and bytes that are no UTF-8 become U+FFFD.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ems::pdc::api {

// Bound: holds back less than the longest stop string, and 3 bytes.
// Threading: one thread (holder).
class TextFilter final {
 public:
  // Empty stop strings are ignored.
  explicit TextFilter(std::vector<std::string> stops);

  // The text that `bytes` make certain: valid UTF-8, perhaps empty. Nothing after stopped().
  // Cost: O(bytes × stops) as a rule, with the length of a stop string more for adverse ones.
  std::string Feed(std::string_view bytes);
  // The rest, when no more bytes come. Then Feed is not called again.
  std::string Finish();
  // A stop string has come; what follows it is dropped.
  bool stopped() const { return stopped_; }

 private:
  // Makes characters of `bytes`; keeps the beginning of one unless it is the end.
  std::string Characters(std::string_view bytes, bool end);

  std::vector<std::string> stops_;
  std::string held_;     // bytes that may turn out to begin a stop string
  std::string partial_;  // the beginning of a character
  bool stopped_ = false;
};

// How many bytes at the beginning of `bytes` are one valid character (1 … 4); 0: none, and `bad` is
// how many make one replacement character (Unicode 15, §3.9, table 3-7: maximal subparts), which is
// 0 when more bytes may complete it.
size_t CharacterBytes(std::string_view bytes, size_t* bad);

}  // namespace ems::pdc::api
