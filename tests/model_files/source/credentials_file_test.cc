// What must hold: secrets are found by name, a file that others may read is refused, and no secret
// gets into an error's text.
#include "model_files/source/credentials_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/temp_path.h"

namespace ems::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kText =
    "# ours\n"
    "[default]\n"
    "aws_access_key_id = A\r\n"
    "aws_secret_access_key=S=cret\n"
    "region = x\n"
    "\n"
    "; another\n"
    "[ team ]\n"
    "bearer_token =  T \n"
    "hosts = Models.example,\tb.example:9000 \n";

TEST(CredentialsFileTest, FindsSectionsByName) {
  const auto first = ParseCredentials(kText, "f", "default");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->access_key, "A");
  EXPECT_EQ(first->secret_key, "S=cret");
  EXPECT_EQ(first->bearer_token, "");
  EXPECT_TRUE(first->hosts.empty());
  EXPECT_EQ(ParseCredentials(kText, "f", "team")->bearer_token, "T");
  EXPECT_EQ(ParseCredentials(kText, "f", "team")->hosts,
            (std::vector<std::string>{"models.example", "b.example:9000"}));
}

TEST(CredentialsFileTest, ErrorsNameTheLineAndNoSecret) {
  const std::vector<std::pair<std::string, StatusCode>> cases = {
      {"[other]\nbearer_token = hidden\n", StatusCode::kNotFound},
      {"[team]\nhidden\n", StatusCode::kInvalidArgument},
      {"[team]\naws_access_key_id = hidden\n", StatusCode::kInvalidArgument},
      {"[team]\n[team]\nbearer_token = hidden\n", StatusCode::kInvalidArgument},
      {"[team]\nbearer_token = hidden\nhosts =\n", StatusCode::kInvalidArgument},
  };
  for (const auto& [text, code] : cases) {
    const auto got = ParseCredentials(text, "file.ini", "team");
    EXPECT_EQ(got.status().code(), code) << text;
    EXPECT_THAT(std::string(Message(got.status())), HasSubstr("file.ini"));
    EXPECT_THAT(std::string(Message(got.status())), Not(HasSubstr("hidden")));
  }
  EXPECT_THAT(std::string(Message(ParseCredentials("[team]\n\nx\n", "f", "team").status())),
              HasSubstr("f:3"));
}

TEST(CredentialsFileTest, AFileThatOthersMayReadIsRefused) {
  const ::ems::testing::TempPath file("credentials.ini");
  const std::string& path = file.path();
  std::ofstream(path) << kText;
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  const auto open = ReadCredentials(path, "team");
  EXPECT_EQ(open.status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(Message(open.status())), HasSubstr("chmod 600"));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(ReadCredentials(path, "team").ok());
  EXPECT_EQ(ReadCredentials(path + ".none", "team").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadCredentials("", "team").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadCredentials(::testing::TempDir(), "team").status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::model
