#include "pdc/api/api_error.h"

#include <nlohmann/json.hpp>
#include <tuple>

namespace ems::pdc::api {
namespace {

constexpr const char* kRetryAfterSeconds = "1";

constexpr std::tuple<StatusCode, int, const char*> kErrors[] = {
    {StatusCode::kInvalidArgument, 400, "invalid_value"},
    {StatusCode::kOutOfRange, 400, "invalid_value"},
    {StatusCode::kNotFound, 404, "not_found"},
    {StatusCode::kResourceExhausted, 429, "rate_limit_exceeded"},
    {StatusCode::kCancelled, 499, "cancelled"},
    {StatusCode::kUnimplemented, 501, "not_implemented"},
    {StatusCode::kUnavailable, 503, "unavailable"},
    {StatusCode::kFailedPrecondition, 503, "unavailable"},
    {StatusCode::kDeadlineExceeded, 504, "deadline_exceeded"}};

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
  for (const auto& [code, status, name] : kErrors) {
    if (why.code() == code)
      return {.status = status, .message = std::string(Message(why)), .code = name};
  }
  return {
      .status = 500, .message = "the server failed; its log says why", .code = "internal_error"};
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
