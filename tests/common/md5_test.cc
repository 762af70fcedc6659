// What must hold: the digest of RFC 1321, however the message is cut into parts and wherever it is
// taken up.
#include "common/md5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

namespace ems {
namespace {

using ::testing::HasSubstr;

std::string Hex(Md5Stream stream) { return ToHex(stream.Finish()); }

std::string Sample(size_t bytes) {
  std::string message(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) message[i] = static_cast<char>(i * 131 + i / 251);
  return message;
}

TEST(Md5Test, GivesTheDigestsOfTheStandard) {
  Md5Stream stream;
  EXPECT_EQ(Hex(stream), "d41d8cd98f00b204e9800998ecf8427e");
  stream.Update(AsBytes("abc"));
  EXPECT_EQ(Hex(stream), "900150983cd24fb0d6963f7d28e17f72");
  stream.Update(AsBytes("d"));
  stream.Update(AsBytes("efghijklmnopqrstuvwxyz"));
  EXPECT_EQ(ToHex(stream.Finish()), "c3fcd3d76192e4007dfb496cca67e13b");
  EXPECT_EQ(stream.bytes(), 0U) << "it begins anew";
  stream.Update(AsBytes("abc"));
  EXPECT_EQ(Hex(stream), "900150983cd24fb0d6963f7d28e17f72");
}

TEST(Md5Test, IsThatOfTheWholeForEveryLengthAroundABlock) {
  for (size_t bytes = 0; bytes <= 200; ++bytes) {
    const std::string message = Sample(bytes);
    Md5Stream stream;
    stream.Update(AsBytes(message).first(bytes / 3));
    stream.Update(AsBytes(message).subspan(bytes / 3));
    EXPECT_EQ(stream.bytes(), bytes);
    EXPECT_EQ(Hex(stream), ToHex(*Md5(AsBytes(message)))) << bytes;
  }
}

TEST(Md5Test, IsTakenUpWhereItWasSaved) {
  const std::string message = Sample(100'003);
  std::string saved = Md5Stream().Save();
  for (size_t at = 0; at < message.size(); at += 777) {
    Result<Md5Stream> stream = Md5Stream::Restore(saved);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream->Update(AsBytes(message).subspan(at, std::min<size_t>(777, message.size() - at)));
    saved = stream->Save();
    EXPECT_EQ(saved.size(), Md5Stream::kSavedBytes);
  }
  EXPECT_EQ(Hex(*Md5Stream::Restore(saved)), ToHex(*Md5(AsBytes(message))));
}

// As in FIPS mode: asked for what is approved alone, libcrypto has no MD5 here.
TEST(Md5Test, IsNotOfferedWhereLibcryptoRefusesIt) {
  EXPECT_EQ(Md5Stream::Offered(), OkStatus());
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  const Status offered = Md5Stream::Offered();
  const std::string saved = Md5Stream().Save();
  const std::optional<Md5Digest> at_once = Md5(AsBytes("abc"));
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_EQ(offered.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(saved, Md5Stream().Save());
  EXPECT_EQ(at_once, std::nullopt);
}

TEST(Md5Test, RefusesAStateOfAnotherLength) {
  const Status refused = Md5Stream::Restore("short").status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(refused)), HasSubstr("88 bytes, not 5"));
}

}  // namespace
}  // namespace ems
