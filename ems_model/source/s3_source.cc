#include "ems_model/source/s3_source.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "ems_model/source/s3_listing.h"
#include "ems_model/source/sigv4.h"

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
  if (files.empty()) return Error(StatusCode::kNotFound, "{}: nothing is there", shown);
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

Status S3Source::Read(const SourceFile& file, uint64_t offset, MutableBytes into,
                      Deadline deadline) {
  EMS_RETURN_IF_ERROR(CheckRead(file, offset, into.size()));
  if (into.empty()) return OkStatus();
  return reader_.ReadRange(UrlOf(file.path),
                           {.bytes = file.bytes, .tag = file.tag, .md5_tag = true}, offset, into,
                           deadline);
}

}  // namespace ems::model
