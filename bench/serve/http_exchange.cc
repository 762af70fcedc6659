#include "bench/serve/http_exchange.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>

#include "common/check.h"
#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

struct FreeEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

struct Receiver {
  CURL* easy;
  const OnHttpBody& on_body;
  HttpAnswer answer = {};
  Status refused = {};
  bool head_ended = false;
};

// libcurl takes an answer whose head was cut for a whole one without a body.
size_t OnHeader(char* data, size_t, size_t bytes, void* to) {
  if (std::string_view(data, bytes) == "\r\n") static_cast<Receiver*>(to)->head_ended = true;
  return bytes;
}

// Another number than `bytes` ends the exchange.
size_t OnBody(char* data, size_t, size_t bytes, void* to) {
  auto& receiver = *static_cast<Receiver*>(to);
  long status = 0;
  curl_easy_getinfo(receiver.easy, CURLINFO_RESPONSE_CODE, &status);
  if (status == 200) {
    receiver.refused = receiver.on_body({data, bytes});
  } else if (receiver.answer.text.append(data, bytes).size() > HttpAnswer::kTextBytesMax) {
    receiver.refused = Error(StatusCode::kResourceExhausted, "an answer of more than {} B",
                             HttpAnswer::kTextBytesMax);
  }
  return receiver.refused.ok() ? bytes : 0;
}

StatusCode CodeOf(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return StatusCode::kDeadlineExceeded;
    case CURLE_URL_MALFORMAT:
      return StatusCode::kInvalidArgument;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

Result<HttpAnswer> ExchangeHttp(const HttpAsk& ask, Deadline deadline, const OnHttpBody& on_body) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  EMS_RETURN_IF_ERROR(fabric::ParseAddress(ask.address).status());
  const std::unique_ptr<CURL, FreeEasy> easy(curl_easy_init());
  std::unique_ptr<curl_slist, FreeList> headers(
      curl_slist_append(nullptr, "Content-Type: application/json"));
  // An answer that asks for the body first would add a round trip to what is measured.
  EMS_CHECK(ready == CURLE_OK && easy != nullptr && headers != nullptr &&
            curl_slist_append(headers.get(), "Expect:") != nullptr);
  Receiver receiver{.easy = easy.get(), .on_body = on_body};
  const std::string url = fmt::format("http://{}{}", ask.address, ask.path);
  const auto set = [&](CURLoption option, auto value) {
    EMS_CHECK(curl_easy_setopt(easy.get(), option, value) == CURLE_OK, "option {}",
              static_cast<int>(option));
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http");
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TIMEOUT_MS, std::max(1L, long{deadline.RemainingMs()}));
  set(CURLOPT_HEADERFUNCTION, &OnHeader);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&receiver));
  set(CURLOPT_WRITEFUNCTION, &OnBody);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&receiver));
  if (!ask.body.empty()) {
    set(CURLOPT_HTTPHEADER, headers.get());
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(ask.body.size()));
    set(CURLOPT_POSTFIELDS, ask.body.data());
  }
  const CURLcode code = curl_easy_perform(easy.get());
  if (!receiver.refused.ok()) return receiver.refused;
  if (code != CURLE_OK) return Error(CodeOf(code), "{}: {}", url, curl_easy_strerror(code));
  if (!receiver.head_ended) return Error(StatusCode::kUnavailable, "{}: the head was cut", url);
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  receiver.answer.status = static_cast<int>(status);
  return std::move(receiver.answer);
}

}  // namespace ems::bench
