// What must hold: what is kept is given back once, of versions that there still are, and no more
// than the bound.
#include "mp_server/found_blocks.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

std::vector<FoundBlocks::File> Files(uint32_t digests) {
  FoundBlocks::File file{.file = 3, .started = 100, .round = 2, .digests = {}};
  for (uint32_t i = 0; i < digests; ++i)
    file.digests.emplace_back(i, model::BlockDigest{static_cast<std::byte>(i)});
  return {file};
}

TEST(FoundBlocksTest, WhatIsKeptIsGivenBackOnce) {
  FoundBlocks found;
  found.Keep(7, Files(4));
  EXPECT_TRUE(found.Take(8).empty());
  const auto files = found.Take(7);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].file, 3U);
  EXPECT_EQ(files[0].started, 100U);
  EXPECT_EQ(files[0].round, 2U);
  EXPECT_EQ(files[0].digests, Files(4)[0].digests);
  EXPECT_TRUE(found.Take(7).empty());
}

TEST(FoundBlocksTest, VersionsThatAreGoneGo) {
  FoundBlocks found;
  found.Keep(7, Files(4));
  found.Keep(8, Files(4));
  found.Retain({8, 9});
  EXPECT_TRUE(found.Take(7).empty());
  EXPECT_EQ(found.Take(8).size(), 1U);
}

TEST(FoundBlocksTest, BeyondTheBoundWhatWasKeptFirstGoes) {
  FoundBlocks found(10);
  found.Keep(7, Files(4));
  found.Keep(8, Files(4));
  found.Keep(9, Files(6));
  EXPECT_TRUE(found.Take(7).empty());
  EXPECT_EQ(found.Take(8).size(), 1U);
  found.Keep(10, Files(4));
  EXPECT_EQ(found.Take(9).size(), 1U) << "what was taken makes room";
  found.Keep(11, Files(11));
  EXPECT_TRUE(found.Take(11).empty()) << "more than there is room for at all";
}

}  // namespace
}  // namespace ems::server
