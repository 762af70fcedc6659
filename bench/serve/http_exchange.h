#pragma once
// One HTTP/1.1 request on a connection of its own, its answer delivered as it comes: the second
// door to libcurl, for a client of the serving API that measures.
//
// Invariant: an exchange is OK only when the end of the answer came; one that was cut is an error.
// Bound: all of it ends with the deadline; of an answer other than 200 kTextBytesMax are taken.
#include <functional>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

struct HttpAsk {
  std::string address;  // host:port
  std::string path = "/";
  std::string body = {};  // JSON, sent by POST; empty: GET
};

struct HttpAnswer {
  static constexpr size_t kTextBytesMax = kMiB;
  int status = 0;
  std::string text = {};  // the body, unless it was a 200's
};

// Takes bytes of a 200's body as soon as there are any. An error ends the exchange.
using OnHttpBody = std::function<Status(std::string_view bytes)>;

// Blocks. Errors: kUnavailable  refused, gone, or cut    kDeadlineExceeded    kInternal  not HTTP
// kInvalidArgument  not an address    kResourceExhausted  a text that is too long    what `on_body`
// says
Result<HttpAnswer> ExchangeHttp(const HttpAsk& ask, Deadline deadline, const OnHttpBody& on_body);

}  // namespace ems::bench
