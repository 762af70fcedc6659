#include "ems_context/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace ems::context {
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

TEST(Sha256Test, ForgetsTheMessageBefore) {
  Sha256 used;
  used.Digest(AsBytes("something else"));
  Sha256 fresh;
  EXPECT_EQ(used.Digest(AsBytes("abc")), fresh.Digest(AsBytes("abc")));
}

}  // namespace
}  // namespace ems::context
