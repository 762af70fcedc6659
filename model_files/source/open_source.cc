#include "model_files/source/open_source.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "model_files/source/file_source.h"
#include "model_files/source/http_source.h"
#include "model_files/source/s3_source.h"
#include "model_files/source/source_url.h"

namespace ems::model {
namespace {

Status Bad(std::string_view what) { return Error(StatusCode::kInvalidArgument, what); }

// What goes into a header line must not end it.
Status CheckSecret(std::string_view name, std::string_view secret) {
  const auto fits = [](char c) { return c > 0x20 && c < 0x7F; };
  if (secret.size() > 16 * kKiB || !std::all_of(secret.begin(), secret.end(), fits)) {
    return Error(StatusCode::kInvalidArgument,
                 "the {} has characters that no such secret has, or is too long", name);
  }
  return OkStatus();
}

Status CheckCredentials(const SourceCredentials& credentials, const SourceUrl& url) {
  const SourceUrl::Kind kind = url.kind;
  EMS_RETURN_IF_ERROR(CheckSecret("access key", credentials.access_key));
  EMS_RETURN_IF_ERROR(CheckSecret("secret key", credentials.secret_key));
  EMS_RETURN_IF_ERROR(CheckSecret("session token", credentials.session_token));
  EMS_RETURN_IF_ERROR(CheckSecret("bearer token", credentials.bearer_token));
  const bool keys = !credentials.access_key.empty();
  if (keys != !credentials.secret_key.empty() || (!credentials.session_token.empty() && !keys)) {
    return Bad("an access key and a secret key come together, a session token only with them");
  }
  if (keys && kind != SourceUrl::Kind::kS3) return Bad("only s3 sources take an access key");
  if (!credentials.bearer_token.empty() && kind != SourceUrl::Kind::kHttp) {
    return Bad("only http sources take a bearer token");
  }
  const std::string& host = url.http.authority;
  if (credentials.hosts.empty() ||
      std::ranges::find(credentials.hosts, host) != credentials.hosts.end())
    return OkStatus();
  return Error(StatusCode::kPermissionDenied, "the credentials are for {}, not for '{}'",
               fmt::join(credentials.hosts, ", "), host);
}

Status CheckSpec(const SourceSpec& spec, const SourceUrl& url) {
  EMS_RETURN_IF_ERROR(CheckCredentials(spec.credentials, url));
  if (spec.files.size() > kSourceFilesMax) return Bad("the spec names too many files");
  for (const std::string& path : spec.files) EMS_RETURN_IF_ERROR(CheckFilePath(path));
  if (spec.connections_max == 0 || spec.connections_max > 1024) {
    return Bad("connections_max is 1 to 1024");
  }
  if (spec.retries_max > 100) return Bad("retries_max is 0 to 100");
  if (!spec.ca_file.empty() && access(spec.ca_file.c_str(), R_OK) != 0) {
    return Error(StatusCode::kInvalidArgument, "the ca_file '{}' cannot be read",
                 Printable(spec.ca_file, 256));
  }
  constexpr Duration kLeast = std::chrono::milliseconds(1);
  constexpr Duration kMost = std::chrono::hours(1);
  for (const Duration duration : {spec.retry_delay, spec.connect_timeout, spec.stall_timeout}) {
    if (duration < kLeast || duration > kMost) return Bad("delays and timeouts are 1 ms to 1 h");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<WeightSource>> OpenSource(const SourceSpec& spec) {
  EMS_ASSIGN_OR_RETURN(SourceUrl url, ParseSourceUrl(spec.url));
  EMS_RETURN_IF_ERROR(CheckSpec(spec, url));
  switch (url.kind) {
    case SourceUrl::Kind::kFile:
      return FileSource::Open(spec, url.folder);
    case SourceUrl::Kind::kHttp:
      return std::unique_ptr<WeightSource>(std::make_unique<HttpSource>(spec, std::move(url)));
    case SourceUrl::Kind::kS3:
      return std::unique_ptr<WeightSource>(std::make_unique<S3Source>(spec, std::move(url)));
  }
  return Bad("no such kind of source");
}

}  // namespace ems::model
