// What must hold: a key that was shown is told of, no other one is, and what is not shown any more
// is forgotten.
#include "mp_server/hot/copy_hints.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/object_key.h"

namespace ems::server {
namespace {

constexpr NamespaceRef kNs{NamespaceId(1), 1};

TEST(CopyHintsTest, OnlyKeysThatAreShownAreToldOf) {
  const auto hints = std::make_unique<CopyHints>();
  EXPECT_FALSE(hints->any());
  EXPECT_EQ(hints->Of(kNs, KeyHash("hot")), 0);
  const std::vector<CopyHints::Hint> shown = {{kNs, KeyHash("hot"), 0xe5}};
  hints->Show(shown);
  EXPECT_TRUE(hints->any());
  EXPECT_EQ(hints->Of(kNs, KeyHash("hot")), 0xe5);
  EXPECT_EQ(hints->Of({NamespaceId(2), 1}, KeyHash("hot")), 0);
  EXPECT_EQ(hints->Of({NamespaceId(1), 2}, KeyHash("hot")), 0) << "a namespace made anew";
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_EQ(hints->Of(kNs, KeyHash("cold " + std::to_string(i))), 0);
  }
  hints->Show({});
  EXPECT_FALSE(hints->any());
  EXPECT_EQ(hints->Of(kNs, KeyHash("hot")), 0);
}

TEST(CopyHintsTest, NearlyAllOfSixtyFourKeysFindAPlace) {
  const auto hints = std::make_unique<CopyHints>();
  std::vector<CopyHints::Hint> shown;
  for (int i = 0; i < 64; ++i)
    shown.push_back({kNs, KeyHash(std::to_string(i)), static_cast<uint8_t>(0x20 + i)});
  hints->Show(shown);
  int told = 0;
  for (const auto& one : shown) {
    const uint8_t hint = hints->Of(kNs, one.hash);
    EXPECT_TRUE(hint == 0 || hint == one.packed);
    if (hint != 0) ++told;
  }
  EXPECT_GE(told, 56);
}

}  // namespace
}  // namespace ems::server
