#include "model_files/source/open_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StatusCode CodeOf(const SourceSpec& spec) { return OpenSource(spec).status().code(); }

TEST(OpenSourceTest, OpensEachKindWithoutConnecting) {
  EXPECT_TRUE(OpenSource({.url = "/tmp"}).ok());
  EXPECT_TRUE(OpenSource({.url = "https://nowhere.invalid/m/"}).ok());
  EXPECT_TRUE(OpenSource({.url = "s3://bucket/m?endpoint=http://nowhere.invalid"}).ok());
}

TEST(OpenSourceTest, CredentialsHaveToFitTheSource) {
  SourceSpec spec{.url = "s3://bucket/m"};
  spec.credentials.access_key = "A";
  EXPECT_EQ(CodeOf(spec), StatusCode::kInvalidArgument);  // no secret key
  spec.credentials.secret_key = "S";
  EXPECT_EQ(CodeOf(spec), StatusCode::kOk);
  spec.credentials.bearer_token = "B";
  EXPECT_EQ(CodeOf(spec), StatusCode::kInvalidArgument);
  spec.credentials.bearer_token = "";
  spec.url = "http://h/m";
  EXPECT_EQ(CodeOf(spec), StatusCode::kInvalidArgument);
  spec = {.url = "s3://bucket/m"};
  spec.credentials.session_token = "T";
  EXPECT_EQ(CodeOf(spec), StatusCode::kInvalidArgument);
}

// A client that names a source must not be able to choose where a server's keys go.
TEST(OpenSourceTest, CredentialsGoToTheHostsThatTheyAreForAlone) {
  SourceSpec spec;
  spec.credentials.bearer_token = "secret";
  spec.credentials.hosts = {"models.example", "b.example:9000"};
  for (const std::string_view url :
       {"https://models.example/x/", "http://Models.Example:80/", "http://b.example:9000/m"}) {
    spec.url = url;
    EXPECT_TRUE(OpenSource(spec).ok()) << url;
  }
  for (const std::string_view url : {"https://evil.example/x/", "http://models.example:8080/",
                                     "http://models.example.evil/", "http://b.example/"}) {
    spec.url = url;
    const Status refused = OpenSource(spec).status();
    EXPECT_EQ(refused.code(), StatusCode::kPermissionDenied) << url;
    EXPECT_EQ(std::string(Message(refused)).find("secret"), std::string::npos);
  }
  spec.credentials.bearer_token.clear();
  spec.credentials.access_key = spec.credentials.secret_key = "k";
  spec.url = "s3://bucket/p?endpoint=http://b.example:9000";
  EXPECT_TRUE(OpenSource(spec).ok());
  spec.url = "s3://bucket/p?endpoint=http://evil.example";
  EXPECT_EQ(OpenSource(spec).status().code(), StatusCode::kPermissionDenied);
}

TEST(OpenSourceTest, ASecretThatWouldEndAHeaderIsRefusedAndNotRepeated) {
  SourceSpec spec{.url = "http://h/m"};
  spec.credentials.bearer_token = "hunter2\r\nX: y";
  const Status status = OpenSource(spec).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), Not(HasSubstr("hunter2")));
}

TEST(OpenSourceTest, NumbersOfTheSpecHaveBounds) {
  EXPECT_EQ(CodeOf({.url = "http://h/m", .connections_max = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.url = "http://h/m", .retries_max = 101}), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.url = "http://h/m", .stall_timeout = Duration::zero()}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.url = "https://h/m", .ca_file = "/none"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.url = "http://h/m", .files = {"a", "../b"}}), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::model
