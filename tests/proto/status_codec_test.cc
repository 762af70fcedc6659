// What must hold: a status crosses gRPC and comes back with its code and text.
#include "proto/status_codec.h"

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

namespace ems {
namespace {

TEST(StatusCodecTest, EachCodeKeepsItsNumberAndTextBothWays) {
  for (int code = 1; code <= 16; ++code) {
    const Status status = Error(static_cast<StatusCode>(code), "text of {}", code);
    const grpc::Status there = ToGrpc(status);
    EXPECT_EQ(static_cast<int>(there.error_code()), code);
    EXPECT_EQ(there.error_message(), fmt::format("text of {}", code));
    EXPECT_EQ(FromGrpc(there), status);
  }
}

TEST(StatusCodecTest, OkIsOkBothWays) {
  EXPECT_TRUE(ToGrpc(OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusCodecTest, TextMayHoldNulAndUtf8) {
  const Status status = Error(StatusCode::kInternal, std::string_view("a\0\xc3\xa9", 4));
  EXPECT_EQ(Message(FromGrpc(ToGrpc(status))), std::string_view("a\0\xc3\xa9", 4));
}

}  // namespace
}  // namespace ems
