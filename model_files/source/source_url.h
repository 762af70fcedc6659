#pragma once
// The addresses of sources: what a person writes, and the URLs that requests go to.
//
// Invariant: no text made here holds a credential. URLs with user:password@ are refused, and so are
// queries on http sources (tokens travel in those); a URL is shown without its query.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::model {

inline constexpr size_t kUrlBytesMax = 16 * kKiB;  // signed ones that redirections lead to are long
inline constexpr size_t kPathBytesMax = 1024;      // of a file below a root; S3 has the same limit

// An http or https URL in pieces that are ready to be sent.
struct HttpUrl {
  bool tls = false;
  std::string authority;  // lower case; "host", "host:port", "[::1]:port"; never the default port
  std::string path;       // starts with '/', percent-encoded as it was
  std::string query;      // without '?', percent-encoded as it was

  std::string Text() const;   // what is requested
  std::string Shown() const;  // for people: without the query
  bool SameOrigin(const HttpUrl& other) const {
    return tls == other.tls && authority == other.authority;
  }
};

// Errors: kInvalidArgument  neither http nor https, credentials in it, no proper host, port or
// path; the text does not repeat what may be secret
Result<HttpUrl> ParseHttpUrl(std::string_view text);

struct SourceUrl {
  enum class Kind { kFile, kHttp, kS3 };
  Kind kind = Kind::kFile;
  std::string folder;         // kFile: absolute
  HttpUrl http;               // kHttp: its path ends with '/'; kS3: the endpoint, its path is "/"
  std::string bucket;         // kS3
  std::string prefix;         // kS3: of keys, not encoded; empty, or ends with '/'
  std::string region;         // kS3
  bool virtual_host = false;  // kS3: bucket.host/key instead of host/bucket/key
};

// Reads "/abs/dir", "file:///abs/dir", "http(s)://host/prefix/" and
// "s3://bucket/prefix?endpoint=http://host:port&region=R&style=path|virtual". Without endpoint it
// is AWS's of the region; without region us-east-1; without style path, with AWS's endpoint
// virtual. Errors: kInvalidArgument  saying what is wrong
Result<SourceUrl> ParseSourceUrl(std::string_view text);

// That a file's path stays below its root: 1 to kPathBytesMax bytes, no control characters, no
// empty,
// "." or ".." part.   Errors: kInvalidArgument
Status CheckFilePath(std::string_view path);

// Percent-encoding as AWS wants it (RFC 3986's unreserved characters stay). `keep_slash` for paths.
std::string PercentEncode(std::string_view text, bool keep_slash);
// Errors: kInvalidArgument  a '%' without two hexadecimal digits
Result<std::string> PercentDecode(std::string_view text);

}  // namespace ems::model
