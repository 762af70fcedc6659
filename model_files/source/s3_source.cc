#include "model_files/source/s3_source.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>

#include "model_files/source/s3_listing.h"
#include "model_files/source/sigv4.h"

namespace ems::model {
namespace {

constexpr uint64_t kPageBytesMax = 16 * kMiB;
constexpr size_t kPagesMax = 10'000;

HttpUrl BucketUrl(const SourceUrl& url) {
  HttpUrl bucket = url.http;
  if (url.virtual_host) {
    bucket.authority = url.bucket + "." + bucket.authority;
  } else {
    bucket.path = "/" + url.bucket + "/";
  }
  return bucket;
}

// Signatures are about wall time, whatever it is: the server compares it with its own.
std::string AmzTime() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

// An entity tag that may be an MD5: 32 hexadecimal digits in quotes, and the number of parts.
struct SumInTag {
  std::string hex;
  uint64_t parts = 0;  // 0: of the whole
};

std::optional<SumInTag> ParseTag(std::string_view tag) {
  constexpr size_t kDigits = 32;
  if (tag.size() < kDigits + 2 || tag.front() != '"' || tag.back() != '"') return std::nullopt;
  tag = tag.substr(1, tag.size() - 2);
  SumInTag sum{.hex = std::string(tag.substr(0, kDigits))};
  for (char& digit : sum.hex) {
    if (digit >= 'A' && digit <= 'F') digit = static_cast<char>(digit - 'A' + 'a');
    if ((digit < '0' || digit > '9') && (digit < 'a' || digit > 'f')) return std::nullopt;
  }
  tag.remove_prefix(kDigits);
  if (tag.empty()) return sum;
  const auto [end, error] = std::from_chars(tag.data() + 1, tag.data() + tag.size(), sum.parts);
  const bool good = tag.front() == '-' && error == std::errc() && end == tag.data() + tag.size();
  if (!good || sum.parts == 0) return std::nullopt;
  return sum;
}

HttpReader::Authorize SignerOf(const SourceSpec& spec, const std::string& region) {
  if (spec.credentials.access_key.empty()) return nullptr;
  return [credentials = spec.credentials, region](std::string_view method, const HttpUrl& url) {
    return S3SignedHeaders(credentials, region, method, url, AmzTime());
  };
}

}  // namespace

std::vector<std::string> S3SignedHeaders(const SourceCredentials& credentials,
                                         std::string_view region, std::string_view method,
                                         const HttpUrl& url, std::string_view time) {
  SigV4Request request{.method = method, .path = url.path, .query = url.query, .headers = {}};
  request.headers = {{"host", url.authority},
                     {"x-amz-content-sha256", std::string(kEmptyPayloadSha256)},
                     {"x-amz-date", std::string(time)}};
  if (!credentials.session_token.empty()) {
    request.headers.push_back({"x-amz-security-token", credentials.session_token});
  }
  const SigV4Key key{.access_key = credentials.access_key,
                     .secret_key = credentials.secret_key,
                     .region = std::string(region)};
  std::vector<std::string> headers = {"Authorization: " + SigV4Authorization(request, key, time)};
  for (const SigV4Header& header : request.headers) {
    if (header.name != "host") headers.push_back(header.name + ": " + header.value);
  }
  return headers;
}

S3Source::S3Source(const SourceSpec& spec, SourceUrl url)
    : files_(spec.files),
      url_(std::move(url)),
      bucket_(BucketUrl(url_)),
      reader_(spec, bucket_, SignerOf(spec, url_.region)) {}

HttpUrl S3Source::UrlOf(std::string_view path) const {
  HttpUrl url = bucket_;
  url.path += PercentEncode(url_.prefix, true) + PercentEncode(path, true);
  return url;
}

Result<std::vector<SourceFile>> S3Source::List(Deadline deadline) {
  if (!files_.empty()) {
    return StatFiles(
        &reader_, files_, [this](std::string_view path) { return UrlOf(path); },
        /*may_miss=*/false, deadline);
  }
  const std::string shown = fmt::format("s3://{}/{}", url_.bucket, url_.prefix);
  std::vector<SourceFile> files;
  std::string token;
  for (size_t pages = 0;; ++pages) {
    if (pages == kPagesMax) {
      return Error(StatusCode::kResourceExhausted, "{}: above {} pages", shown, kPagesMax);
    }
    HttpUrl url = bucket_;
    // "/bucket" as AWS's own programs ask, not "/bucket/": some stores sign what they make of it.
    if (!url_.virtual_host) url.path.pop_back();
    if (!token.empty()) url.query = "continuation-token=" + PercentEncode(token, false) + "&";
    url.query += "list-type=2&prefix=" + PercentEncode(url_.prefix, false);
    EMS_ASSIGN_OR_RETURN(const std::string xml, reader_.Text(url, kPageBytesMax, deadline));
    Result<S3Page> page = ParseS3Page(xml);
    if (!page.ok()) return Prefixed(page.status(), shown);
    for (S3Object& object : page->objects) {
      if (!object.key.starts_with(url_.prefix)) {
        return Error(StatusCode::kDataLoss, "{}: the listing has '{}', which is elsewhere", shown,
                     Printable(object.key));
      }
      if (object.key.ends_with('/') || object.key == url_.prefix) continue;  // marks a folder
      std::string path = object.key.substr(url_.prefix.size());
      EMS_RETURN_IF_ERROR(Prefixed(CheckFilePath(path), shown));
      if (files.size() == kSourceFilesMax) {
        return Error(StatusCode::kResourceExhausted, "{}: above {} files", shown, kSourceFilesMax);
      }
      files.push_back(
          {.path = std::move(path), .bytes = object.bytes, .tag = std::move(object.etag)});
    }
    if (page->next_token.empty()) break;
    if (page->next_token == token) {
      return Error(StatusCode::kDataLoss, "{}: the listing does not get ahead", shown);
    }
    token = std::move(page->next_token);
  }
  if (files.empty()) return Error(StatusCode::kNotFound, "{}: no object has this prefix", shown);
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  const auto twice =
      std::adjacent_find(files.begin(), files.end(),
                         [](const SourceFile& a, const SourceFile& b) { return a.path == b.path; });
  if (twice != files.end()) {
    return Error(StatusCode::kDataLoss, "{}: the listing has '{}' twice", shown, twice->path);
  }
  return files;
}

Result<uint64_t> S3Source::PartBytes(const SourceFile& file, uint64_t number, Deadline deadline) {
  HttpUrl url = UrlOf(file.path);
  url.query = fmt::format("partNumber={}", number);
  const Result<RemoteFile> part = reader_.StatPart(url, deadline);
  switch (part.status().code()) {
    case StatusCode::kOk:
      return part->tag == file.tag ? part->bytes : 0;
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kCancelled:
      return part.status();
    default:  // many stores know no parts, and say so in many ways
      return 0;
  }
}

Result<std::string> S3Source::Sum(const SourceFile& file, Deadline deadline) {
  const std::optional<SumInTag> sum = ParseTag(file.tag);
  if (!sum || file.bytes == 0) return std::string();
  EMS_ASSIGN_OR_RETURN(const RemoteFile now, reader_.Stat(UrlOf(file.path), deadline));
  if (now.tag != file.tag || now.bytes != file.bytes) {
    return Error(StatusCode::kFailedPrecondition, "{}: the source changed while it was listed",
                 UrlOf(file.path).Shown());
  }
  if (now.encrypted) return std::string();
  if (sum->parts == 0) return "md5:" + sum->hex;
  EMS_ASSIGN_OR_RETURN(const uint64_t first, PartBytes(file, 1, deadline));
  if (first == 0 || (file.bytes - 1) / first + 1 != sum->parts) return std::string();
  // Parts of different lengths would hardly leave this one for the last.
  EMS_ASSIGN_OR_RETURN(const uint64_t last, PartBytes(file, sum->parts, deadline));
  if (last != file.bytes - (sum->parts - 1) * first) return std::string();
  return fmt::format("md5-parts:{}:{}-{}", first, sum->hex, sum->parts);
}

Status S3Source::Read(const SourceFile& file, uint64_t offset, MutableBytes into,
                      Deadline deadline) {
  return ReadCompared(file, offset, into, deadline).status();
}

Result<bool> S3Source::ReadCompared(const SourceFile& file, uint64_t offset, MutableBytes into,
                                    Deadline deadline) {
  EMS_RETURN_IF_ERROR(CheckRead(file, offset, into.size()));
  if (into.empty()) return true;
  return reader_.ReadRange(UrlOf(file.path),
                           {.bytes = file.bytes, .tag = file.tag, .md5_tag = file.md5_tag}, offset,
                           into, deadline);
}

}  // namespace ems::model
