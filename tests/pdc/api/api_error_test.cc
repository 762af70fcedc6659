// What must hold: each error has its status, its type, and a body that is JSON whatever it quotes.
#include "pdc/api/api_error.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ems::pdc::api {
namespace {

TEST(ApiErrorTest, EachCodeHasItsStatus) {
  const std::vector<std::pair<StatusCode, int>> table = {
      {StatusCode::kInvalidArgument, 400},  {StatusCode::kOutOfRange, 400},
      {StatusCode::kNotFound, 404},         {StatusCode::kResourceExhausted, 429},
      {StatusCode::kCancelled, 499},        {StatusCode::kInternal, 500},
      {StatusCode::kDataLoss, 500},         {StatusCode::kUnimplemented, 501},
      {StatusCode::kUnavailable, 503},      {StatusCode::kFailedPrecondition, 503},
      {StatusCode::kDeadlineExceeded, 504},
  };
  for (const auto& [code, status] : table) EXPECT_EQ(ErrorOf(Error(code, "x")).status, status);
}

TEST(ApiErrorTest, HasTheShapeThatClientsKnow) {
  const auto json = nlohmann::json::parse(ErrorJson(BadParam("n", "no \"n\" \xFF here")));
  EXPECT_EQ(json["error"]["message"], "no \"n\" \xEF\xBF\xBD here");
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  EXPECT_EQ(json["error"]["param"], "n");
  EXPECT_EQ(json["error"]["code"], "invalid_value");
  const auto bare = nlohmann::json::parse(ErrorJson({.status = 400, .message = "x"}));
  EXPECT_TRUE(bare["error"]["param"].is_null());
  EXPECT_TRUE(bare["error"]["code"].is_null());
}

TEST(ApiErrorTest, InternalsStayInside) {
  const ApiError error = ErrorOf(Error(StatusCode::kInternal, "at 0x1234 in /secret"));
  EXPECT_EQ(error.message.find("secret"), std::string::npos);
  EXPECT_NE(ErrorJson(error).find("\"server_error\""), std::string::npos);
}

TEST(ApiErrorTest, WhoShouldComeAgainIsToldWhen) {
  auto has_retry = [](int status) {
    const auto reply = ErrorReply({.status = status, .message = "x"});
    EXPECT_EQ(reply.status, status);
    return !reply.headers.empty() && reply.headers[0].first == "Retry-After";
  };
  EXPECT_TRUE(has_retry(429));
  EXPECT_TRUE(has_retry(503));
  EXPECT_FALSE(has_retry(400));
  EXPECT_FALSE(has_retry(500));
}

}  // namespace
}  // namespace ems::pdc::api
