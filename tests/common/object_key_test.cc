// What must hold: keys of 1 to 512 bytes are taken whatever they hold, others are refused with
// their length.
#include "common/object_key.h"

#include <gtest/gtest.h>

#include <string>

namespace ems {
namespace {

TEST(ObjectKeyTest, TakesAnyBytesOfOneTo512) {
  EXPECT_TRUE(ValidateKey("k").ok());
  EXPECT_TRUE(ValidateKey(std::string_view("\0", 1)).ok());
  EXPECT_TRUE(ValidateKey("schlüssel/🔑\xff").ok());
  EXPECT_TRUE(ValidateKey(std::string(kKeyBytesMax, 'k')).ok());
}

TEST(ObjectKeyTest, RefusesEmptyAndLongKeysNamingTheirLength) {
  EXPECT_EQ(ValidateKey("").code(), StatusCode::kInvalidArgument);
  const Status status = ValidateKey(std::string(kKeyBytesMax + 1, 'k'));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status), "key of 513 bytes: 1 to 512 are allowed");
}

TEST(ObjectKeyTest, HashSeesEveryByteNulIncluded) {
  EXPECT_NE(KeyHash(std::string_view("a\0b", 3)), KeyHash(std::string_view("a\0c", 3)));
  EXPECT_NE(KeyHash(std::string_view("a\0", 2)), KeyHash("a"));
}

}  // namespace
}  // namespace ems
