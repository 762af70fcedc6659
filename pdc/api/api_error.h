#pragma once
// Errors as OpenAI's clients know them: an HTTP status, and {"error": {message, type, param,
// code}}.
#include <string>

#include "common/status.h"
#include "fabric/http/http_message.h"

namespace ems::pdc::api {

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};  // the field that is wrong; empty: null
  std::string code = {};   // empty: null
};

// What is wrong with `param` of a request: 400.
ApiError BadParam(std::string param, std::string message, std::string code = "invalid_value");

// ResourceExhausted 429 · Unavailable, FailedPrecondition 503 · DeadlineExceeded 504 ·
// InvalidArgument, OutOfRange 400 · NotFound 404 · Cancelled 499 · Unimplemented 501 · else 500,
// whose text stays here: it is of no use to a client.
ApiError ErrorOf(const Status& why);

// {"error": …} without a line's end. The message may be any bytes.
std::string ErrorJson(const ApiError& error);
// The whole answer; 429 and 503 say when to come again.
fabric::HttpReply ErrorReply(const ApiError& error);

}  // namespace ems::pdc::api
