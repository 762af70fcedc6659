// What must hold: a page of kept keys comes back as it was told, and bytes that are none are
// refused.
#include "proto/kept_page.h"

#include <gtest/gtest.h>

namespace ems::wire {
namespace {

std::vector<std::byte> Encode() {
  KeptPage page{.head = {.namespace_id = 4, .namespace_generation = 5, .node = 6, .since = 7},
                .keys = {.keys = {{.key = "a", .value_bytes = 10}, {.key = "bc"}},
                         .next = ScanCursor{1, 2, 3}}};
  std::vector<std::byte> body;
  AppendTo(page, &body);
  return body;
}

TEST(KeptPageTest, ComesBackAsItWasTold) {
  const auto page = ParseKeptPage(Encode());
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->ns(), (NamespaceRef{NamespaceId(4), 5}));
  EXPECT_EQ(page->head.node, 6U);
  EXPECT_EQ(page->head.since, 7U);
  ASSERT_EQ(page->keys.keys.size(), 2U);
  EXPECT_EQ(page->keys.keys[0].value_bytes, 10U);
  EXPECT_EQ(page->keys.keys[1].key, "bc");
  EXPECT_EQ(page->keys.next, (ScanCursor{1, 2, 3}));
}

TEST(KeptPageTest, LengthsThatDoNotFitAreRefused) {
  const auto body = Encode();
  for (size_t bytes = 0; bytes < body.size(); ++bytes)
    EXPECT_FALSE(ParseKeptPage(ConstBytes(body).first(bytes)).ok()) << bytes;
  auto longer = body;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(ParseKeptPage(longer).ok());
}

}  // namespace
}  // namespace ems::wire
