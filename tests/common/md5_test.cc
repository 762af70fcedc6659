// What must hold: the digest of RFC 1321, however the message is cut into parts.
#include "common/md5.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

namespace ems {
namespace {

std::string Sample(size_t bytes) {
  std::string message(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) message[i] = static_cast<char>(i * 131 + i / 251);
  return message;
}

TEST(Md5Test, GivesTheDigestsOfTheStandard) {
  Md5Stream stream;
  EXPECT_EQ(ToHex(stream.Finish()), "d41d8cd98f00b204e9800998ecf8427e");
  stream.Update(AsBytes("abcd"));
  stream.Update(AsBytes("efghijklmnopqrstuvwxyz"));
  EXPECT_EQ(ToHex(stream.Finish()), "c3fcd3d76192e4007dfb496cca67e13b");
  EXPECT_EQ(stream.bytes(), 0U) << "it starts from scratch";
  stream.Update(AsBytes("abc"));
  EXPECT_EQ(ToHex(stream.Finish()), "900150983cd24fb0d6963f7d28e17f72");
}

TEST(Md5Test, IsThatOfTheWholeForEveryLengthAroundABlock) {
  for (size_t bytes = 0; bytes <= 200; ++bytes) {
    const std::string message = Sample(bytes);
    Md5Stream stream;
    stream.Update(AsBytes(message).first(bytes / 3));
    stream.Update(AsBytes(message).subspan(bytes / 3));
    EXPECT_EQ(stream.bytes(), bytes);
    EXPECT_EQ(ToHex(stream.Finish()), ToHex(*Md5(AsBytes(message)))) << bytes;
  }
}

// As in FIPS mode: asked for what is approved alone, libcrypto has no MD5 here.
TEST(Md5Test, IsNotOfferedWhereLibcryptoRefusesIt) {
  EXPECT_EQ(Md5Stream::Offered(), OkStatus());
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  const Status offered = Md5Stream::Offered();
  const std::optional<Md5Digest> at_once = Md5(AsBytes("abc"));
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_EQ(offered.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(at_once, std::nullopt);
}

}  // namespace
}  // namespace ems
