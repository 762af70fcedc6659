// Any text, as the address of a source and as a path: an error, or something that stays below its
// root and can be sent.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "model_files/source/source_url.h"

namespace ems::model {
namespace {

void CheckHttp(const HttpUrl& url) {
  EMS_CHECK(!url.authority.empty() && url.path.starts_with('/'));
  EMS_CHECK(url.authority.find_first_of("@/?# \r\n") == std::string::npos);
  for (const char c : url.Text()) EMS_CHECK(static_cast<unsigned char>(c) > 0x20 && c != 0x7F);
  // What is sent reads as the same again.
  const Result<HttpUrl> again = ParseHttpUrl(url.Text());
  EMS_CHECK(again.ok() && again->Text() == url.Text() && again->SameOrigin(url));
}

void CheckBelow(std::string_view path) {
  EMS_CHECK(path.find("/../") == std::string_view::npos && !path.starts_with("../"));
  EMS_CHECK(path != ".." && !path.ends_with("/.."));
}

}  // namespace
}  // namespace ems::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ems::model;  // NOLINT(google-build-using-namespace)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto url = ParseSourceUrl(text); url.ok()) {
    CheckBelow(url->folder);
    CheckBelow(url->prefix);
    if (url->kind == SourceUrl::Kind::kFile) {
      EMS_CHECK(url->folder.starts_with('/'));
    } else {
      CheckHttp(url->http);
      EMS_CHECK(url->http.query.empty() && url->http.path.ends_with('/'));
    }
  }
  if (const auto url = ParseHttpUrl(text); url.ok() && url->Text().size() <= kUrlBytesMax) {
    CheckHttp(*url);
  }
  if (CheckFilePath(text).ok()) {
    EMS_CHECK(!text.starts_with('/') && !text.ends_with('/'));
    CheckBelow(text);
  }
  const std::string encoded = PercentEncode(text, size % 2 == 0);
  const auto decoded = PercentDecode(encoded);
  EMS_CHECK(decoded.ok() && *decoded == text);
  (void)PercentDecode(text);
  return 0;
}
