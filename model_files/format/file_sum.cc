#include "model_files/format/file_sum.h"

#include <algorithm>
#include <charconv>

namespace ems::model {
namespace {

constexpr std::string_view kWhole = "md5:";
constexpr std::string_view kParts = "md5-parts:";
constexpr size_t kDigits = 32;

bool IsHex(std::string_view text) {
  return text.size() == kDigits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

template <typename Number>
bool TakeNumber(std::string_view* text, Number* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

bool Take(char wanted, std::string_view* text) {
  if (!text->starts_with(wanted)) return false;
  text->remove_prefix(1);
  return true;
}

bool ParseParts(std::string_view text, FileSum* sum) {
  if (!TakeNumber(&text, &sum->part_bytes) || !Take(':', &text)) return false;
  sum->hex = text.substr(0, kDigits);
  text.remove_prefix(sum->hex.size());
  return IsHex(sum->hex) && Take('-', &text) && TakeNumber(&text, &sum->parts) && text.empty();
}

}  // namespace

std::string FileSum::Text() const {
  if (part_bytes == 0) return std::string(kWhole) + hex;
  return fmt::format("{}{}:{}-{}", kParts, part_bytes, hex, parts);
}

Result<FileSum> ParseFileSum(std::string_view text, uint64_t file_bytes) {
  FileSum sum;
  bool good = false;
  if (text.starts_with(kWhole)) {
    sum.hex = text.substr(kWhole.size());
    good = IsHex(sum.hex);
  } else if (text.starts_with(kParts)) {
    good = ParseParts(text.substr(kParts.size()), &sum) && sum.part_bytes > 0 && file_bytes > 0 &&
           (file_bytes - 1) / sum.part_bytes + 1 == sum.parts;
  }
  if (good) return sum;
  return Error(StatusCode::kInvalidArgument, "\"{}\" is no sum of a file of {} bytes",
               Printable(text, 128), file_bytes);
}

Status FileHasher::Offered() {
  return Prefixed(Md5Stream::Offered(),
                  "the sums of files cannot be compared; add the version "
                  "with --ignore-etags, or read it elsewhere");
}

void FileHasher::Update(ConstBytes bytes) {
  if (part_bytes_ == 0) return part_.Update(bytes);
  while (!bytes.empty()) {
    const uint64_t left = part_bytes_ - part_.bytes();
    const ConstBytes now = bytes.first(std::min<uint64_t>(left, bytes.size()));
    part_.Update(now);
    if (now.size() == left) of_parts_.Update(part_.Finish());
    bytes = bytes.subspan(now.size());
  }
}

std::string FileHasher::Finish() {
  if (part_bytes_ == 0) return ToHex(part_.Finish());
  if (part_.bytes() > 0) of_parts_.Update(part_.Finish());
  return ToHex(of_parts_.Finish());
}

}  // namespace ems::model
