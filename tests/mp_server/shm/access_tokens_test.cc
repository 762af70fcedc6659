// What must hold: only the token of its namespace lets a client in, and a file that says nothing
// clear lets nobody in.
#include "mp_server/shm/access_tokens.h"

#include <gtest/gtest.h>

#include <fstream>

#include "proto/data_plane.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::server {
namespace {

class AccessTokensTest : public ::testing::Test {
 protected:
  Result<AccessTokens> Read(std::string_view text) {
    std::ofstream(path_) << text;
    return AccessTokens::Read(path_);
  }
  controller::TempDir folder_;
  const std::string path_ = folder_.path() + "/tokens";
};

TEST_F(AccessTokensTest, EachNamespaceHasItsOwnAndAStarIsForTheOthers) {
  const auto tokens = Read("# of the cluster\n\nblue  b1u3\n\tred r3d \r\nred r3d-new\n* any\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_TRUE(tokens->Check("blue", "b1u3").ok());
  EXPECT_TRUE(tokens->Check("red", "r3d").ok());
  EXPECT_TRUE(tokens->Check("red", "r3d-new").ok()) << "both, while one replaces the other";
  EXPECT_TRUE(tokens->Check("green", "any").ok());
  for (const std::string wrong : {"", "b1u", "b1u33", "B1U3", "r3d", "any", "b1u3b1u3"}) {
    const Status refused = tokens->Check("blue", wrong);
    EXPECT_EQ(refused.code(), StatusCode::kPermissionDenied) << wrong;
    EXPECT_EQ(Message(refused).find("b1u3"), std::string_view::npos) << refused;
  }
}

TEST_F(AccessTokensTest, ANamespaceWithoutALineIsClosed) {
  const auto tokens = Read("blue b1u3\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Check("red", "b1u3").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(tokens->Check("red", "").code(), StatusCode::kPermissionDenied);
  const auto empty = Read("");
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->Check("blue", "").code(), StatusCode::kPermissionDenied);
}

TEST_F(AccessTokensTest, WhatIsWrongWithTheFileIsSaidWithItsLine) {
  for (const std::string bad : {"blue\n", "blue one two\n"}) {
    const auto read = Read("# first\n" + bad);
    ASSERT_FALSE(read.ok()) << bad;
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(Message(read.status()).find("tokens line 2"), std::string_view::npos)
        << read.status();
  }
  EXPECT_FALSE(Read("blue b1u3\nred r3").ok()) << "cut in the middle of a line";
  EXPECT_FALSE(Read("blue " + std::string(wire::kTokenBytesMax + 1, 'x') + "\n").ok());
  EXPECT_TRUE(Read("blue " + std::string(wire::kTokenBytesMax, 'x') + "\n").ok());
  EXPECT_FALSE(Read(std::string(AccessTokens::kFileBytesMax + 1, '#')).ok());
  EXPECT_EQ(AccessTokens::Read(folder_.path() + "/none").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(AccessTokens::Read(folder_.path()).ok()) << "a folder is not a file";
}

}  // namespace
}  // namespace ems::server
