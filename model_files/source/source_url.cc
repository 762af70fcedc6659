#include "model_files/source/source_url.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "common/bytes.h"

namespace ems::model {
namespace {

Status Bad(std::string_view what) { return Error(StatusCode::kInvalidArgument, what); }
template <typename... Args>
requires(sizeof...(Args) > 0) Status Bad(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

bool IsAlnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// "scheme" of "scheme://rest", lower case; `text` becomes the rest. Empty: there is none.
std::string TakeScheme(std::string_view* text) {
  const size_t end = text->find("://");
  if (end == std::string_view::npos) return "";
  std::string scheme = Lower(text->substr(0, end));
  text->remove_prefix(end + 3);
  return scheme;
}

// What stands in front of the first of `ends`; `text` keeps the rest, that character included.
std::string_view TakeUntil(std::string_view ends, std::string_view* text) {
  const std::string_view taken = text->substr(0, text->find_first_of(ends));
  text->remove_prefix(taken.size());
  return taken;
}

Status CheckHost(std::string_view host) {
  const bool v6 = host.starts_with('[') && host.ends_with(']');
  const std::string_view inside = v6 ? host.substr(1, host.size() - 2) : host;
  const auto fits = [v6](char c) {
    return IsAlnum(c) || c == '.' || (v6 ? c == ':' : c == '-' || c == '_');
  };
  if (inside.empty() || inside.size() > 253 || !std::all_of(inside.begin(), inside.end(), fits)) {
    return Bad("the host of the URL is no proper name or address");
  }
  return OkStatus();
}

// "Host:80" → "host", where 80 is the default.
Result<std::string> Authority(std::string_view text, bool tls) {
  if (text.find('@') != std::string_view::npos) {
    return Bad("the URL has credentials in it; give them apart from it");
  }
  const size_t bracket = text.rfind(']');
  const size_t colon = text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  const std::string_view host = text.substr(0, colon);
  EMS_RETURN_IF_ERROR(CheckHost(host));
  std::string authority = Lower(host);
  if (colon == std::string_view::npos) return authority;
  const std::string_view digits = text.substr(colon + 1);
  uint32_t port = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || stop != digits.data() + digits.size() || port == 0 || port > 65535) {
    return Bad("the port of the URL is no number of 1 to 65535");
  }
  if (port != (tls ? 443U : 80U)) authority += ":" + std::to_string(port);
  return authority;
}

Status CheckText(std::string_view text) {
  if (text.empty() || text.size() > kUrlBytesMax) {
    return Bad("a URL has 1 to {} bytes, not {}", kUrlBytesMax, text.size());
  }
  if (std::any_of(text.begin(), text.end(), IsControl)) {
    return Bad("the URL has control characters in it");
  }
  return OkStatus();
}

std::string EndsWithSlash(std::string path) {
  if (!path.empty() && !path.ends_with('/')) path += '/';
  return path;
}

Result<SourceUrl> FileUrl(std::string_view folder) {
  if (!folder.starts_with('/')) {
    return Bad("a file source is an absolute path or file:///path, not '{}'", Printable(folder));
  }
  std::string_view rest = folder;
  while (!rest.empty()) {
    if (TakeUntil("/", &rest) == "..") return Bad("'{}' has '..' in it", Printable(folder));
    if (!rest.empty()) rest.remove_prefix(1);
  }
  SourceUrl url;
  url.folder = std::string(folder);
  return url;
}

Result<SourceUrl> HttpSourceUrl(std::string_view text) {
  SourceUrl url;
  url.kind = SourceUrl::Kind::kHttp;
  EMS_ASSIGN_OR_RETURN(url.http, ParseHttpUrl(text));
  if (!url.http.query.empty() || text.find('?') != std::string_view::npos) {
    return Bad("an http source takes no query ('?…'); credentials are given apart from the URL");
  }
  url.http.path = EndsWithSlash(std::move(url.http.path));
  const Result<std::string> decoded = PercentDecode(url.http.path);
  if (!decoded.ok()) return decoded.status();
  if (*decoded != "/") {
    EMS_RETURN_IF_ERROR(CheckFilePath(std::string_view(*decoded).substr(1, decoded->size() - 2)));
  }
  return url;
}

// The parameters behind "s3://bucket/prefix?". Values are never repeated: one may be a secret.
Status S3Parameters(std::string_view query, std::optional<std::string>* endpoint,
                    std::optional<std::string>* style, std::string* region) {
  while (!query.empty()) {
    std::string_view pair = TakeUntil("&", &query);
    if (!query.empty()) query.remove_prefix(1);
    const std::string_view name = TakeUntil("=", &pair);
    if (pair.empty()) return Bad("the parameter '{}' has no value", Printable(name, 32));
    EMS_ASSIGN_OR_RETURN(std::string value, PercentDecode(pair.substr(1)));
    if (name == "endpoint") {
      *endpoint = std::move(value);
    } else if (name == "region") {
      *region = std::move(value);
    } else if (name == "style") {
      *style = std::move(value);
    } else {
      return Bad(
          "an s3 source takes endpoint, region and style, not '{}'; credentials are given "
          "apart from the URL",
          Printable(name, 32));
    }
  }
  const auto fits = [](char c) { return IsAlnum(c) || c == '-' || c == '_'; };
  if (region->empty() || region->size() > 64 ||
      !std::all_of(region->begin(), region->end(), fits)) {
    return Bad("the region is no proper name");
  }
  if (*style && **style != "path" && **style != "virtual") {
    return Bad("the style is 'path' or 'virtual'");
  }
  return OkStatus();
}

Status CheckBucket(std::string_view bucket) {
  if (bucket.find('@') != std::string_view::npos) {
    return Bad("the URL has credentials in it; give them apart from it");
  }
  const auto fits = [](char c) { return IsAlnum(c) || c == '-' || c == '_' || c == '.'; };
  if (bucket.size() < 3 || bucket.size() > 255 || bucket.starts_with('.') ||
      bucket.ends_with('.') || bucket.find("..") != std::string_view::npos ||
      !std::all_of(bucket.begin(), bucket.end(), fits)) {
    return Bad("the bucket is no proper name");
  }
  return OkStatus();
}

Result<SourceUrl> S3Url(std::string_view text) {
  SourceUrl url;
  url.kind = SourceUrl::Kind::kS3;
  url.region = "us-east-1";
  const std::string_view bucket = TakeUntil("/?", &text);
  EMS_RETURN_IF_ERROR(CheckBucket(bucket));
  url.bucket = std::string(bucket);
  std::string_view prefix = TakeUntil("?", &text);
  if (prefix.starts_with('/')) prefix.remove_prefix(1);
  EMS_ASSIGN_OR_RETURN(url.prefix, PercentDecode(prefix));
  url.prefix = EndsWithSlash(std::move(url.prefix));
  if (!url.prefix.empty()) {
    EMS_RETURN_IF_ERROR(
        CheckFilePath(std::string_view(url.prefix).substr(0, url.prefix.size() - 1)));
  }
  std::optional<std::string> endpoint;
  std::optional<std::string> style;
  if (!text.empty()) text.remove_prefix(1);
  EMS_RETURN_IF_ERROR(S3Parameters(text, &endpoint, &style, &url.region));
  url.virtual_host = style ? *style == "virtual" : !endpoint;
  EMS_ASSIGN_OR_RETURN(
      url.http, ParseHttpUrl(endpoint.value_or("https://s3." + url.region + ".amazonaws.com")));
  if (url.http.path != "/" || !url.http.query.empty()) {
    return Bad("the endpoint is http(s)://host:port, without a path");
  }
  if (url.virtual_host && url.http.authority.starts_with('[')) {
    return Bad("an address as endpoint takes style=path");
  }
  return url;
}

}  // namespace

std::string HttpUrl::Shown() const { return (tls ? "https://" : "http://") + authority + path; }

std::string HttpUrl::Text() const { return query.empty() ? Shown() : Shown() + "?" + query; }

Result<HttpUrl> ParseHttpUrl(std::string_view text) {
  EMS_RETURN_IF_ERROR(CheckText(text));
  const std::string scheme = TakeScheme(&text);
  if (scheme != "http" && scheme != "https") return Bad("the URL is neither http:// nor https://");
  HttpUrl url;
  url.tls = scheme == "https";
  EMS_ASSIGN_OR_RETURN(url.authority, Authority(TakeUntil("/?#", &text), url.tls));
  text = TakeUntil("#", &text);  // a fragment is for browsers
  url.path = std::string(TakeUntil("?", &text));
  if (url.path.empty()) url.path = "/";
  if (!text.empty()) url.query = std::string(text.substr(1));
  // Everything else would be encoded on the way, and a signature would not fit.
  constexpr std::string_view kPlain = "-._~!$&'()*+,;=:@/?%";
  for (const std::string_view part : {std::string_view(url.path), std::string_view(url.query)}) {
    for (const char c : part) {
      if (!IsAlnum(c) && kPlain.find(c) == std::string_view::npos) {
        return Bad("the URL has characters in it that have to be percent-encoded");
      }
    }
    EMS_RETURN_IF_ERROR(PercentDecode(part).status());
  }
  return url;
}

Result<SourceUrl> ParseSourceUrl(std::string_view text) {
  EMS_RETURN_IF_ERROR(CheckText(text));
  std::string_view rest = text;
  const std::string scheme = text.starts_with('/') ? "" : TakeScheme(&rest);
  if (scheme.empty()) return FileUrl(text);
  if (scheme == "http" || scheme == "https") return HttpSourceUrl(text);
  if (scheme == "s3") return S3Url(rest);
  if (scheme == "file") {
    const Result<std::string> folder = PercentDecode(rest);
    if (!folder.ok()) return folder.status();
    EMS_RETURN_IF_ERROR(CheckText(*folder));
    return FileUrl(*folder);
  }
  return Bad("sources are file://, http://, https:// and s3://, not '{}://'",
             Printable(scheme, 16));
}

Status CheckFilePath(std::string_view path) {
  if (path.empty() || path.size() > kPathBytesMax) {
    return Bad("a file's path has 1 to {} bytes, not {}", kPathBytesMax, path.size());
  }
  if (std::any_of(path.begin(), path.end(), IsControl)) {
    return Bad("the path '{}' has control characters in it", Printable(path));
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      return Bad("the path '{}' has an empty part, '.' or '..' in it", Printable(path));
    }
    begin = end + 1;
  }
  return OkStatus();
}

std::string PercentEncode(std::string_view text, bool keep_slash) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (IsAlnum(c) || c == '-' || c == '.' || c == '_' || c == '~' || (keep_slash && c == '/')) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

Result<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    if (i + 2 >= text.size() || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) {
      return Bad("a '%' without two hexadecimal digits");
    }
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

}  // namespace ems::model
