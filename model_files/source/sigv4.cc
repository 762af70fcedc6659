#include "model_files/source/sigv4.h"

#include <algorithm>

#include "common/bytes.h"
#include "common/check.h"
#include "common/sha256.h"

namespace ems::model {
namespace {

// Blanks at the ends go, runs of them inside become one.
std::string Trimmed(std::string_view value) {
  std::string trimmed;
  for (const char c : value) {
    const bool blank = c == ' ' || c == '\t';
    if (!blank) {
      trimmed += c;
    } else if (!trimmed.empty() && trimmed.back() != ' ') {
      trimmed += ' ';
    }
  }
  if (trimmed.ends_with(' ')) trimmed.pop_back();
  return trimmed;
}

std::vector<SigV4Header> Sorted(std::vector<SigV4Header> headers) {
  std::stable_sort(headers.begin(), headers.end(),
                   [](const SigV4Header& a, const SigV4Header& b) { return a.name < b.name; });
  return headers;
}

std::string SignedNames(const SigV4Request& request) {
  std::string names;
  for (const SigV4Header& header : Sorted(request.headers)) {
    names += (names.empty() ? "" : ";") + header.name;
  }
  return names;
}

std::string CanonicalQuery(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> pairs;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    pairs.emplace_back(pair.substr(0, equals), pair.substr(std::min(equals + 1, pair.size())));
  }
  std::sort(pairs.begin(), pairs.end());
  std::string canonical;
  for (const auto& [name, value] : pairs) {
    canonical += (canonical.empty() ? "" : "&") + name + "=" + value;
  }
  return canonical;
}

std::string Scope(const SigV4Key& key, std::string_view time) {
  return fmt::format("{}/{}/{}/aws4_request", time.substr(0, 8), key.region, key.service);
}

Sha256Digest SigningKey(const SigV4Key& key, std::string_view day) {
  EMS_CHECK(day.size() == 8, "no day as it is signed: {}", day);
  Sha256Digest digest = HmacSha256(AsBytes("AWS4" + key.secret_key), AsBytes(day));
  for (const std::string_view part : {std::string_view(key.region), std::string_view(key.service),
                                      std::string_view("aws4_request")}) {
    digest = HmacSha256(digest, AsBytes(part));
  }
  return digest;
}

}  // namespace

std::string SigV4CanonicalRequest(const SigV4Request& request) {
  std::string text =
      fmt::format("{}\n{}\n{}\n", request.method, request.path, CanonicalQuery(request.query));
  for (const SigV4Header& header : Sorted(request.headers)) {
    text += header.name + ":" + Trimmed(header.value) + "\n";
  }
  return text + fmt::format("\n{}\n{}", SignedNames(request), request.payload_sha256);
}

std::string SigV4StringToSign(const SigV4Request& request, const SigV4Key& key,
                              std::string_view time) {
  EMS_CHECK(time.size() == 16 && time[8] == 'T', "no time as it is signed: {}", time);
  return fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, Scope(key, time),
                     ToHex(Sha256().Digest(AsBytes(SigV4CanonicalRequest(request)))));
}

std::string SigV4Authorization(const SigV4Request& request, const SigV4Key& key,
                               std::string_view time) {
  const Sha256Digest signature = HmacSha256(SigningKey(key, time.substr(0, 8)),
                                            AsBytes(SigV4StringToSign(request, key, time)));
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                     key.access_key, Scope(key, time), SignedNames(request), ToHex(signature));
}

}  // namespace ems::model
