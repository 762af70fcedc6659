// Any bytes, as the body of a request for a completion, as a model's text and as stop strings: a
// request within its bounds or an error that is JSON; text that is valid and has no stop
// string in it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/check.h"
#include "pdc/api/completion_reply.h"
#include "pdc/api/completion_request.h"
#include "pdc/api/text_filter.h"

namespace ems::pdc::api {
namespace {

void CheckUtf8(std::string_view text) {
  while (!text.empty()) {
    size_t bad = 0;
    const size_t good = CharacterBytes(text, &bad);
    EMS_CHECK(good > 0);
    text.remove_prefix(good);
  }
}

void CheckBody(CompletionKind kind, std::string_view body) {
  const auto parsed = ParseCompletionRequest(kind, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    EMS_CHECK(error->status == 400 && !error->message.empty());
    CheckUtf8(ErrorJson(*error));
    return;
  }
  const CompletionRequest& request = std::get<CompletionRequest>(parsed);
  EMS_CHECK(!request.generate.model.empty());
  EMS_CHECK(request.generate.text.empty() != request.generate.tokens.empty());
  EMS_CHECK(request.generate.sampling.temperature >= 0 &&
            request.generate.sampling.temperature <= 2);
  EMS_CHECK(request.generate.sampling.top_p > 0 && request.generate.sampling.top_p <= 1);
  EMS_CHECK(request.tokens_max.value_or(1) >= 1);
  EMS_CHECK(request.generate.stop.size() <= kStopsMax);
  for (const std::string& stop : request.generate.stop) {
    EMS_CHECK(!stop.empty() && stop.size() <= kStopBytesMax);
  }
  EMS_CHECK(request.stream || !request.include_usage);
}

void CheckFilter(std::string_view bytes) {
  if (bytes.size() < 2) return;
  // Its beginning says what stops it, and how it is cut.
  const size_t stop_bytes = 1 + static_cast<unsigned char>(bytes[0]) % 4;
  const size_t piece = 1 + static_cast<unsigned char>(bytes[1]) % 9;
  const std::string stop(bytes.substr(1, stop_bytes));
  const std::string_view text = bytes.substr(2);
  TextFilter filter({stop}), whole({stop});
  std::string shown;
  for (size_t at = 0; at < text.size() && !filter.stopped(); at += piece) {
    shown += filter.Feed(text.substr(at, piece));
    CheckUtf8(shown);
  }
  if (!filter.stopped()) shown += filter.Finish();
  CheckUtf8(shown);
  std::string at_once = whole.Feed(text);
  if (!whole.stopped()) at_once += whole.Finish();
  EMS_CHECK(filter.stopped() == whole.stopped() && shown == at_once);
  EMS_CHECK(filter.stopped() == (text.find(stop) != std::string_view::npos));
  if (stop.find('\xEF') == std::string::npos && stop.find('\xBF') == std::string::npos &&
      stop.find('\xBD') == std::string::npos) {
    EMS_CHECK(shown.find(stop) == std::string::npos);
  }
}

}  // namespace
}  // namespace ems::pdc::api

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ems::pdc::api;  // NOLINT(google-build-using-namespace)
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckBody(CompletionKind::kText, bytes);
  CheckBody(CompletionKind::kChat, bytes);
  CheckFilter(bytes);
  return 0;
}
