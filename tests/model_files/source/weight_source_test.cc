#include "model_files/source/weight_source.h"

#include <gtest/gtest.h>

namespace ems::model {
namespace {

TEST(WeightSourceTest, ReadsAreCheckedBeforeAnythingIsAsked) {
  const SourceFile file{.path = "a", .bytes = 10, .tag = "\"t\""};
  EXPECT_TRUE(CheckRead(file, 0, 10).ok());
  EXPECT_TRUE(CheckRead(file, 10, 0).ok());
  EXPECT_FALSE(CheckRead(file, 0, 11).ok());
  EXPECT_FALSE(CheckRead(file, 11, 0).ok());
  EXPECT_FALSE(CheckRead(file, ~uint64_t{0}, 2).ok());
  EXPECT_FALSE(CheckRead({.path = "../a", .bytes = 10, .tag = "\"t\""}, 0, 1).ok());
  EXPECT_FALSE(CheckRead({.path = "a", .bytes = 10, .tag = ""}, 0, 1).ok());
  EXPECT_FALSE(CheckRead({.path = "a", .bytes = 10, .tag = "\"t\"\r\nX: y"}, 0, 1).ok());
}

// Reads the byte 7 and nothing else.
class PlainSource final : public WeightSource {
 public:
  Result<std::vector<SourceFile>> List(Deadline) override { return std::vector<SourceFile>(); }
  Status Read(const SourceFile& file, uint64_t offset, MutableBytes into, Deadline) override {
    EMS_RETURN_IF_ERROR(CheckRead(file, offset, into.size()));
    std::fill(into.begin(), into.end(), std::byte{7});
    return OkStatus();
  }
  SourceCounters counters() const override { return {}; }
};

TEST(WeightSourceTest, ASourceThatSaysNoSumsComparesNothing) {
  PlainSource source;
  const SourceFile file{.path = "a", .bytes = 2, .tag = "t"};
  const Deadline soon = Deadline::After(std::chrono::seconds(10));
  std::array<std::byte, 2> into{};
  const Result<bool> compared = source.ReadCompared(file, 0, into, soon);
  ASSERT_TRUE(compared.ok()) << compared.status();
  EXPECT_FALSE(*compared);
  EXPECT_EQ(into[1], std::byte{7});
  EXPECT_EQ(source.ReadCompared(file, 1, into, soon).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*source.Sum(file, soon), "");
}

}  // namespace
}  // namespace ems::model
