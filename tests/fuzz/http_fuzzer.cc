// Any bytes, as HTTP requests one after the other: the same however they are cut, within the
// limits, and nothing of one request ends up in the next.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "fabric/http/http_message.h"

namespace ems::fabric {
namespace {

constexpr HttpLimits kLimits{.head_bytes_max = 2048, .headers_max = 16, .body_bytes_max = 4096};

void CheckRequest(const HttpRequest& request) {
  EMS_CHECK(!request.method.empty() && request.path.starts_with('/'));
  EMS_CHECK(request.path.find_first_of("? \r\n") == std::string::npos);
  EMS_CHECK(request.headers.size() <= kLimits.headers_max);
  EMS_CHECK(request.body.size() <= kLimits.body_bytes_max);
  for (const auto& [name, value] : request.headers) {
    EMS_CHECK(!name.empty() && name.find_first_of(" :\r\nABC") == std::string::npos);
    EMS_CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
  }
}

// Reads one request in pieces; returns how many bytes it took.
size_t Read(HttpParser* parser, std::string_view text, size_t piece) {
  size_t used = 0;
  while (used < text.size() && !parser->done() && !parser->failed()) {
    const size_t taken = parser->Feed(text.substr(used, piece));
    EMS_CHECK(taken > 0 && taken <= piece);
    used += taken;
  }
  return used;
}

}  // namespace
}  // namespace ems::fabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ems::fabric;  // NOLINT(google-build-using-namespace)
  std::string_view text(reinterpret_cast<const char*>(data), size);
  for (int requests = 0; !text.empty() && requests < 16; ++requests) {
    HttpParser whole(kLimits), pieces(kLimits);
    const size_t used = Read(&whole, text, text.size());
    const size_t used_in_pieces = Read(&pieces, text, 1 + size % 7);
    EMS_CHECK(whole.done() == pieces.done() && whole.failed() == pieces.failed());
    EMS_CHECK(whole.error_status() == pieces.error_status());
    if (whole.failed()) {
      EMS_CHECK(whole.error_status() >= 400 && !whole.error().empty());
      return 0;
    }
    EMS_CHECK(used == used_in_pieces);
    EMS_CHECK(whole.request().body == pieces.request().body);
    EMS_CHECK(whole.request().headers == pieces.request().headers);
    if (!whole.done()) return 0;
    CheckRequest(whole.request());
    text.remove_prefix(used);
  }
  return 0;
}
