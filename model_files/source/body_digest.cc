#include "model_files/source/body_digest.h"

#include <algorithm>
#include <cctype>

#include "common/sha256.h"

namespace ems::model {
namespace {

std::string Base64(ConstBytes bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t j = 0; j < 3; ++j) {
      three = three << 8 | (i + j < bytes.size() ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[three >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

// The value of "sha-256" in a field of RFC 9530: `sha-256=:<base64>:, sha-512=:<base64>:`.
std::string_view Sha256Of(std::string_view field) {
  constexpr std::string_view kName = "sha-256=:";
  const size_t at = field.find(kName);
  if (at == std::string_view::npos) return {};
  const std::string_view value = field.substr(at + kName.size());
  const size_t end = value.find(':');
  return end == std::string_view::npos ? std::string_view() : value.substr(0, end);
}

}  // namespace

std::optional<std::string> ContradictedField(const HttpHead& head, ConstBytes body,
                                             bool whole_file) {
  const std::string_view content = Sha256Of(head.content_digest);
  const std::string_view repr = whole_file ? Sha256Of(head.repr_digest) : std::string_view();
  if (!content.empty() || !repr.empty()) {
    const std::string is = Base64(Sha256().Digest(body));
    if (!content.empty() && content != is) return "Content-Digest";
    if (!repr.empty() && repr != is) return "Repr-Digest";
  }
  if (head.content_md5.empty() || !whole_file) return std::nullopt;
  const std::optional<Md5Digest> md5 = Md5(body);
  if (md5 && Base64(*md5) != head.content_md5) return "Content-MD5";
  return std::nullopt;
}

bool HasChecksum(const HttpHead& head, bool whole_file) {
  if (HasBodyDigest(head)) return true;
  return whole_file && (!Sha256Of(head.repr_digest).empty() ||
                        (!head.content_md5.empty() && Md5(ConstBytes()).has_value()));
}

bool HasBodyDigest(const HttpHead& head) { return !Sha256Of(head.content_digest).empty(); }

std::optional<std::string> Md5OfTag(std::string_view tag, const HttpHead& head) {
  constexpr size_t kDigits = 32;
  if (head.encrypted || tag.size() != kDigits + 2 || tag.front() != '"' || tag.back() != '"')
    return std::nullopt;
  std::string md5(tag.substr(1, kDigits));
  for (char& digit : md5) {
    const auto code = static_cast<unsigned char>(digit);
    if (std::isxdigit(code) == 0) return std::nullopt;
    digit = static_cast<char>(std::tolower(code));
  }
  return md5;
}

}  // namespace ems::model
