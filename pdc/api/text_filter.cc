#include "pdc/api/text_filter.h"

#include <algorithm>
#include <utility>

namespace ems::pdc::api {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  size_t bytes = 0;  // of the character; 0: no character begins so
  unsigned char second_min = 0x80, second_max = 0xBF;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {.bytes = 1};
  if (byte >= 0xC2 && byte <= 0xDF) return {.bytes = 2};
  if (byte == 0xE0) return {.bytes = 3, .second_min = 0xA0};
  if (byte == 0xED) return {.bytes = 3, .second_max = 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {.bytes = 3};
  if (byte == 0xF0) return {.bytes = 4, .second_min = 0x90};
  if (byte >= 0xF1 && byte <= 0xF3) return {.bytes = 4};
  if (byte == 0xF4) return {.bytes = 4, .second_max = 0x8F};
  return {};
}

// The longest end of `text` that begins `word` without being all of it.
size_t BegunBytes(std::string_view text, std::string_view word) {
  for (size_t bytes = std::min(text.size(), word.size() - 1); bytes > 0; --bytes) {
    if (text.ends_with(word.substr(0, bytes))) return bytes;
  }
  return 0;
}

}  // namespace

size_t CharacterBytes(std::string_view bytes, size_t* bad) {
  *bad = 0;
  if (bytes.empty()) return 0;
  const Lead lead = LeadOf(static_cast<unsigned char>(bytes[0]));
  if (lead.bytes == 0) return *bad = 1, 0;
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (i == bytes.size()) return 0;
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char min = i == 1 ? lead.second_min : 0x80;
    const unsigned char max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return *bad = i, 0;
  }
  return lead.bytes;
}

TextFilter::TextFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string TextFilter::Feed(std::string_view bytes) {
  if (stopped_) return {};
  held_ += bytes;
  size_t end = std::string::npos;
  size_t begun = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    begun = std::max(begun, BegunBytes(held_, stop));
  }
  stopped_ = end != std::string::npos;
  const std::string certain = held_.substr(0, stopped_ ? end : held_.size() - begun);
  if (stopped_) {
    held_.clear();
  } else {
    held_.erase(0, certain.size());
  }
  return Characters(certain, stopped_);
}

std::string TextFilter::Finish() { return Characters(std::exchange(held_, {}), true); }

std::string TextFilter::Characters(std::string_view bytes, bool end) {
  partial_ += bytes;
  std::string text;
  text.reserve(partial_.size());
  std::string_view rest = partial_;
  while (!rest.empty()) {
    size_t bad = 0;
    const size_t good = CharacterBytes(rest, &bad);
    if (good > 0) {
      text += rest.substr(0, good);
    } else if (bad > 0) {
      text += kReplacement;
    } else if (end) {  // cut off: one character for all of its beginning
      text += kReplacement;
      bad = rest.size();
    } else {
      break;
    }
    rest.remove_prefix(good + bad);
  }
  partial_ = std::string(rest);
  return text;
}

}  // namespace ems::pdc::api
