#pragma once
// AWS Signature Version 4 for requests without a body, signed in headers, as S3 wants it: the path
// is taken as it is sent, encoded once. Pure functions; the secret key is in no result and no
// error.
#include <string>
#include <string_view>
#include <vector>

namespace ems::model {

// SHA-256 of nothing: the payload of GET and HEAD.
inline constexpr std::string_view kEmptyPayloadSha256 =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct SigV4Header {
  std::string name;  // lower case
  std::string value;
};

struct SigV4Request {
  std::string_view method;           // "GET"
  std::string_view path;             // as sent, percent-encoded, starts with '/'
  std::string_view query;            // as sent, without '?'
  std::vector<SigV4Header> headers;  // those to sign; host and x-amz-date at least
  std::string_view payload_sha256 = kEmptyPayloadSha256;
};

struct SigV4Key {
  std::string access_key;
  std::string secret_key;
  std::string region;
  std::string service = "s3";
};

// The canonical request (AWS's document, step 1). Cost: O(n log n) in headers and parameters.
std::string SigV4CanonicalRequest(const SigV4Request& request);
// The text that is signed. `time` is "YYYYMMDDTHHMMSSZ".
std::string SigV4StringToSign(const SigV4Request& request, const SigV4Key& key,
                              std::string_view time);
// The value of the header Authorization.
std::string SigV4Authorization(const SigV4Request& request, const SigV4Key& key,
                               std::string_view time);

}  // namespace ems::model
