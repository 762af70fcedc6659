// What must hold: the password of a file that only its owner may read opens the page, and nothing
// else does; an error never says it.
#include "mp_controller/page/page_password.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "fabric/http/http_message.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PagePasswordTest : public ::testing::Test {
 protected:
  Result<PagePassword> Read(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    EXPECT_EQ(::chmod(path_.c_str(), mode), 0);
    return PagePassword::Read(path_);
  }
  static bool Allows(const PagePassword& password, const std::string& header) {
    fabric::HttpRequest request;
    if (!header.empty()) request.headers.emplace_back("authorization", header);
    return password.Allows(request);
  }

  TempDir dir_;
  const std::string path_ = dir_.path() + "/password";
};

TEST_F(PagePasswordTest, OpensForUserEmsAndThePasswordAlone) {
  const auto password = Read("correct horse battery\n");
  ASSERT_TRUE(password.ok()) << password.status();
  // printf %s 'ems:correct horse battery' | base64
  EXPECT_TRUE(Allows(*password, "Basic ZW1zOmNvcnJlY3QgaG9yc2UgYmF0dGVyeQ=="));
  for (const char* header : {"", "Basic ", "Basic ZW1zOmNvcnJlY3QgaG9yc2UgYmF0dGVye",
                             "Basic ZW1zOndyb25nIGhvcnNlIGJhdHRlcnk=",      // a wrong one
                             "Basic cm9vdDpjb3JyZWN0IGhvcnNlIGJhdHRlcnk=",  // another user
                             "Bearer ZW1zOmNvcnJlY3QgaG9yc2UgYmF0dGVyeQ=="}) {
    EXPECT_FALSE(Allows(*password, header)) << header;
  }
}

TEST_F(PagePasswordTest, LinesOfAnyLengthAreEncodedAsABrowserDoes) {
  // Of each remainder by 3, and with bytes beyond ASCII.
  const std::pair<const char*, const char*> kLines[] = {
      {"twelve bytes", "Basic ZW1zOnR3ZWx2ZSBieXRlcw=="},
      {"thirteen byte", "Basic ZW1zOnRoaXJ0ZWVuIGJ5dGU="},
      {"fourteen bytes", "Basic ZW1zOmZvdXJ0ZWVuIGJ5dGVz"},
      {"schl\xc3\xbcssel\xff\xfe\xfd\r", "Basic ZW1zOnNjaGzDvHNzZWz//v0="}};
  for (const auto& [line, header] : kLines) {
    for (const char* end : {"", "\n", "\nanother line\n"}) {
      const auto password = Read(std::string(line) + end);
      ASSERT_TRUE(password.ok()) << password.status();
      EXPECT_TRUE(Allows(*password, header)) << line;
    }
  }
}

TEST_F(PagePasswordTest, FilesThatAreNoSecretAreRefused) {
  EXPECT_EQ(PagePassword::Read(path_).status().code(), StatusCode::kNotFound);
  for (const mode_t mode : {0640, 0604, 0660, 0622}) {
    const auto read = Read("correct horse battery\n", mode);
    EXPECT_EQ(read.status().code(), StatusCode::kPermissionDenied) << mode;
    EXPECT_THAT(ToString(read.status()), HasSubstr("chmod 600"));
  }
  EXPECT_EQ(PagePassword::Read(dir_.path()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(PagePasswordTest, PasswordsOfAWrongLengthAreRefusedWithoutBeingSaid) {
  const std::string longest(PagePassword::kBytesMax, 'x');
  EXPECT_TRUE(Read(longest + "\n").ok());
  EXPECT_TRUE(Read(longest).ok());
  for (const std::string& text : {std::string(), std::string("\nsecond line is long"),
                                  std::string("eleven byte"), longest + "y", longest + "y\n"}) {
    const auto read = Read(text);
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument) << text;
    if (text == "eleven byte") {
      EXPECT_THAT(ToString(read.status()), HasSubstr("has 11 bytes"));
    }
    EXPECT_THAT(ToString(read.status()), Not(HasSubstr("eleven")));
  }
}

}  // namespace
}  // namespace ems::controller
