#include "common/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace ems {
namespace {

// Vectors of FIPS 180-2, appendix B, and the digest of nothing.
TEST(Sha256Test, GivesThePublishedDigests) {
  Sha256 sha256;
  EXPECT_EQ(ToHex(sha256.Digest(AsBytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      ToHex(sha256.Digest(AsBytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(ToHex(sha256.Digest(AsBytes(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(ToHex(sha256.Digest({})),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// RFC 1321, appendix A.5.
TEST(Md5Test, GivesThePublishedDigests) {
  const auto hex = [](std::string_view text) { return ToHex(Md5(AsBytes(text)).value()); };
  EXPECT_EQ(hex(""), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(hex("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
}

TEST(Sha256Test, ForgetsTheMessageBefore) {
  Sha256 used;
  used.Digest(AsBytes("something else"));
  Sha256 fresh;
  EXPECT_EQ(used.Digest(AsBytes("abc")), fresh.Digest(AsBytes("abc")));
}

TEST(Sha256Test, PartsGiveTheDigestOfTheWhole) {
  Sha256 sha256;
  const Sha256Digest whole = sha256.Digest(AsBytes("abc"));
  sha256.Update(AsBytes("a"));
  sha256.Update({});
  sha256.Update(AsBytes("bc"));
  EXPECT_EQ(sha256.Finish(), whole);
  EXPECT_EQ(sha256.Finish(), sha256.Digest({})) << "a finished message leaves nothing behind";
  sha256.Update(AsBytes("left alone"));
  EXPECT_EQ(sha256.Digest(AsBytes("abc")), whole);
}

// RFC 4231, test cases 2 and 6: a short key, and one longer than a block.
TEST(HmacSha256Test, GivesThePublishedCodes) {
  EXPECT_EQ(ToHex(HmacSha256(AsBytes("Jefe"), AsBytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(ToHex(HmacSha256(AsBytes(std::string(131, '\xaa')),
                             AsBytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace ems
