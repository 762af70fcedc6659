#include "pdc/api/api_error.h"

#include <nlohmann/json.hpp>

namespace ems::pdc::api {
namespace {

constexpr const char* kRetryAfterSeconds = "1";

const char* TypeOf(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

nlohmann::json OrNull(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace

ApiError BadParam(std::string param, std::string message, std::string code) {
  return {.status = 400,
          .message = std::move(message),
          .param = std::move(param),
          .code = std::move(code)};
}

ApiError ErrorOf(const Status& why) {
  const std::string text(Message(why));
  switch (why.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return {.status = 400, .message = text, .code = "invalid_value"};
    case StatusCode::kNotFound:
      return {.status = 404, .message = text, .code = "not_found"};
    case StatusCode::kResourceExhausted:
      return {.status = 429, .message = text, .code = "rate_limit_exceeded"};
    case StatusCode::kCancelled:
      return {.status = 499, .message = text, .code = "cancelled"};
    case StatusCode::kUnimplemented:
      return {.status = 501, .message = text, .code = "not_implemented"};
    case StatusCode::kUnavailable:
    case StatusCode::kFailedPrecondition:
      return {.status = 503, .message = text, .code = "unavailable"};
    case StatusCode::kDeadlineExceeded:
      return {.status = 504, .message = text, .code = "deadline_exceeded"};
    default:
      return {.status = 500,
              .message = "the server failed; its log says why",
              .code = "internal_error"};
  }
}

std::string ErrorJson(const ApiError& error) {
  const nlohmann::json json = {{"error",
                                {{"message", error.message},
                                 {"type", TypeOf(error.status)},
                                 {"param", OrNull(error.param)},
                                 {"code", OrNull(error.code)}}}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

fabric::HttpReply ErrorReply(const ApiError& error) {
  fabric::HttpReply reply{.status = error.status, .body = ErrorJson(error) + "\n"};
  if (error.status == 429 || error.status == 503) {
    reply.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  }
  return reply;
}

}  // namespace ems::pdc::api
