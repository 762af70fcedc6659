// What must hold: hashes are those of XXH3, which the wire and stored checksums rely on, however
// bytes arrive.
#include "common/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace ems {
namespace {

// Of the XXH3 specification's reference implementation; a change of these breaks every stored
// checksum.
TEST(HashTest, ValuesAreThoseOfXxh3) {
  EXPECT_EQ(Hash64({}), 0x2d06800538d394c2U);
  EXPECT_EQ(HashTo128({}).lo, 0x6001c324468d497fU);
  EXPECT_EQ(HashTo128({}).hi, 0x99aa06d3014798d8U);
}

TEST(HashTest, SeedAndEveryByteMatter) {
  const std::string text(1000, 'x');
  std::string other = text;
  other.back() = 'y';
  EXPECT_EQ(Hash64(AsBytes(text)), Hash64(AsBytes(text)));
  EXPECT_NE(Hash64(AsBytes(text)), Hash64(AsBytes(text), 1));
  EXPECT_NE(Hash64(AsBytes(text)), Hash64(AsBytes(other)));
  EXPECT_NE(HashTo128(AsBytes(text)), HashTo128(AsBytes(other)));
}

TEST(HashTest, StreamEqualsTheHashOfAllBytesAndStartsAfreshAfterReset) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text.push_back(static_cast<char>(i * 31));
  Hash64Stream stream;
  for (int run = 0; run < 2; ++run) {
    stream.Reset();
    for (size_t at = 0; at < text.size(); at += 333) {
      stream.Update(AsBytes(std::string_view(text).substr(at, 333)));
    }
    EXPECT_EQ(stream.Digest(), Hash64(AsBytes(text)));
  }
}

}  // namespace
}  // namespace ems
