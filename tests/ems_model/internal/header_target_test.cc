// What must hold: headers are asked for as far as they reach and no further, once; files without
// tensors are left alone; a damaged header is named.
#include "ems_model/internal/header_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/memory_model.h"

namespace ems::model::internal {
namespace {

using ::testing::HasSubstr;

// A version of one block a file, of which the first `head` bytes are a block of their own.
class HeaderTargetTest : public ::testing::Test {
 protected:
  void Add(const std::string& path, const std::string& content, uint64_t head) {
    const auto file = static_cast<uint32_t>(manifest_.files.size());
    ManifestFile made;
    made.path = path;
    made.bytes = content.size();
    manifest_.files.push_back(std::move(made));
    for (const auto& [offset, bytes] :
         {std::pair<uint64_t, uint64_t>(0, head), std::pair(head, content.size() - head)}) {
      if (bytes == 0) continue;
      ManifestBlock block;
      block.file = file;
      block.offset = offset;
      block.bytes = static_cast<uint32_t>(bytes);
      manifest_.blocks.push_back(block);
    }
    contents_.push_back(content);
  }
  // One pass, as a loader makes it. The bytes that were wanted.
  uint64_t Pass(HeaderTarget* target) {
    uint64_t wanted = 0;
    for (const ManifestBlock& block : manifest_.blocks) {
      const uint64_t bytes = target->Wants(block.file, block.offset, block.bytes);
      if (bytes == 0) continue;
      wanted += bytes;
      std::vector<LoadRange> ranges;
      EXPECT_EQ(target->Place(block.file, block.offset, block.bytes, &ranges), OkStatus());
      for (const LoadRange& range : ranges) {
        EXPECT_GE(range.offset, block.offset);
        std::memcpy(range.into.data(), contents_[block.file].data() + range.offset,
                    range.into.size());
      }
    }
    return wanted;
  }

  const std::string tensors_ = testing::TensorFile({{"one", {4, 2}}, {"two", {3}}});
  Manifest manifest_;
  std::vector<std::string> contents_;
};

TEST_F(HeaderTargetTest, AHeaderThatIsABlockOfItsOwnTakesOnePass) {
  const uint64_t head = tensors_.size() - 8 * 2 - 3 * 2;
  Add("a.safetensors", tensors_, head);
  Add("b.txt", "no tensors", 10);
  HeaderTarget target(&manifest_);
  EXPECT_FALSE(target.done());
  EXPECT_EQ(Pass(&target), head);
  ASSERT_EQ(target.Parse(), OkStatus());
  EXPECT_TRUE(target.done());
  EXPECT_EQ(Pass(&target), 0u);
  const auto tables = target.TakeTables();
  ASSERT_EQ(tables.size(), 2u);
  ASSERT_TRUE(tables[0].has_value());
  EXPECT_EQ(tables[0]->tensors.size(), 2u);
  EXPECT_FALSE(tables[1].has_value());
}

TEST_F(HeaderTargetTest, ALongerHeaderIsReadOnFromWhereItEnded) {
  Add("a.safetensors", tensors_, 8);
  HeaderTarget target(&manifest_);
  uint64_t read = 0, passes = 0;
  for (; !target.done() && passes < 5; ++passes) {
    read += Pass(&target);
    ASSERT_EQ(target.Parse(), OkStatus());
  }
  EXPECT_GT(passes, 1u);
  EXPECT_LE(read, tensors_.size()) << "no byte twice";
  EXPECT_TRUE(target.TakeTables()[0].has_value());
}

TEST_F(HeaderTargetTest, ADamagedHeaderIsNamed) {
  Add("bad.safetensors", std::string(100, 'x'), 100);
  HeaderTarget target(&manifest_);
  Pass(&target);
  const Status status = target.Parse();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("bad.safetensors"));
}

TEST_F(HeaderTargetTest, WithoutTensorsThereIsNothingToDo) {
  Add("b.txt", "no tensors", 10);
  Add("empty.safetensors", "", 0);
  HeaderTarget target(&manifest_);
  EXPECT_TRUE(target.done());
  EXPECT_EQ(Pass(&target), 0u);
}

}  // namespace
}  // namespace ems::model::internal
