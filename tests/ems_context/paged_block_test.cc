#include "ems_context/paged_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ems_context/paged_memory.h"

namespace ems::context {
namespace {

using ::testing::HasSubstr;

class PagedBlockTest : public ::testing::Test {
 protected:
  PagedBlockTest() {
    std::vector<KvLayer> layers(3);
    for (KvLayer& layer : layers) layer.tensors = {memory_.Add({1, 8})};
    layers[2].group = 1;
    layout_ = *KvLayout::Make(layers);
  }
  std::string Refusal(const std::vector<PagedBlock>& blocks, SlotUse use = SlotUse::kWrite) {
    return ToString(CheckBlocks(*layout_, blocks, use));
  }
  test::PagedMemory memory_{4, 16};
  std::optional<KvLayout> layout_;
};

TEST_F(PagedBlockTest, ObjectsHaveTheBytesOfAllGroups) {
  EXPECT_EQ(ObjectBytes(*layout_, {"a", {{{0, 16}}, {{0, 4}}}}), 16u * 32 + 4 * 16);
  EXPECT_EQ(ObjectBytes(*layout_, {"a", {{{0, 16}}, {}}}), 16u * 32);
}

TEST_F(PagedBlockTest, GoodBlocksPass) {
  EXPECT_EQ(Refusal({}), "OK");
  EXPECT_EQ(Refusal({{"a", {{{0, 16}}, {{0, 4}}}}, {"b", {{{16, 8}, {40, 8}}, {}}}}), "OK");
}

TEST_F(PagedBlockTest, RefusalsNameTheBlock) {
  EXPECT_THAT(Refusal({{"a", {{{0, 16}}, {}}}, {"b", {{{60, 5}}, {}}}}),
              HasSubstr("OUT_OF_RANGE: block 1: slots 60 + 5 of group 0, which has 64"));
  EXPECT_THAT(Refusal({{"a", {{{0, 16}}}}}), HasSubstr("block 0: 1 lists of slots"));
  EXPECT_THAT(Refusal({{"a", {{{0, 0}}, {}}}}), HasSubstr("block 0: no tokens"));
}

TEST_F(PagedBlockTest, SlotsAreWrittenOnceAndReadOften) {
  const std::vector<PagedBlock> blocks = {{"a", {{{16, 16}}, {{0, 1}}}},
                                          {"b", {{{0, 8}, {31, 1}}, {}}}};
  EXPECT_THAT(Refusal(blocks),
              HasSubstr("INVALID_ARGUMENT: slot 31 is to be written by block 0 and again by "
                        "block 1"));
  EXPECT_EQ(Refusal(blocks, SlotUse::kRead), "OK");
  EXPECT_THAT(Refusal({{"a", {{{16, 2}, {17, 1}}, {}}}}), HasSubstr("slot 17"));
}

}  // namespace
}  // namespace ems::context
