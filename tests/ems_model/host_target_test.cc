// What must hold: wanted files get memory of their size, the caller's or aligned memory of the
// target's own, and can be seen only after a load that went well.
#include "ems_model/host_target.h"

#include <gtest/gtest.h>

namespace ems::model {
namespace {

const std::vector<LoadFile> kFiles = {{.path = "a", .bytes = 10'000, .table = nullptr},
                                      {.path = "empty", .bytes = 0, .table = nullptr},
                                      {.path = "b", .bytes = 5, .table = nullptr}};

TEST(HostTargetTest, FilesLieInAlignedMemory) {
  HostTarget target;
  ASSERT_TRUE(target.Begin(kFiles).ok());
  EXPECT_EQ(target.Wants(0, 100, 50), 50U);
  std::vector<LoadRange> ranges;
  ASSERT_TRUE(target.Place(0, 0, 10'000, &ranges).ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ranges[0].into.data()) % 4096, 0U);
  std::ranges::fill(ranges[0].into, std::byte{7});
  EXPECT_EQ(target.file("a").status().code(), StatusCode::kNotFound) << "not before the end";
  ASSERT_TRUE(target.End(OkStatus()).ok());
  const Result<ConstBytes> file = target.file("a");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 10'000U);
  EXPECT_EQ((*file)[9'999], std::byte{7});
  EXPECT_EQ(target.file("empty")->size(), 0U);
  EXPECT_EQ(target.file("c").status().code(), StatusCode::kNotFound);
}

TEST(HostTargetTest, AFailedLoadShowsNothing) {
  HostTarget target;
  ASSERT_TRUE(target.Begin(kFiles).ok());
  ASSERT_TRUE(target.End(Error(StatusCode::kCancelled, "x")).ok());
  EXPECT_EQ(target.file("a").status().code(), StatusCode::kNotFound);
}

TEST(HostTargetTest, ChosenFilesInTheCallersMemory) {
  std::vector<std::byte> room(5);
  HostTarget target({.choose = [](std::string_view path) { return path == "b"; },
                     .room = [&](std::string_view, uint64_t) { return MutableBytes(room); }});
  ASSERT_TRUE(target.Begin(kFiles).ok());
  EXPECT_EQ(target.Wants(0, 0, 10'000), 0U);
  std::vector<LoadRange> ranges;
  ASSERT_TRUE(target.Place(2, 1, 4, &ranges).ok());
  EXPECT_EQ(ranges[0].into.data(), room.data() + 1);
  ASSERT_TRUE(target.End(OkStatus()).ok());
  EXPECT_FALSE(target.file("a").ok());
  EXPECT_EQ(target.file("b")->data(), room.data());
}

TEST(HostTargetTest, RoomOfAnotherSizeIsRefused) {
  std::vector<std::byte> room(4);
  HostTarget target({.choose = [](std::string_view path) { return path == "b"; },
                     .room = [&](std::string_view, uint64_t) { return MutableBytes(room); }});
  EXPECT_EQ(target.Begin(kFiles).code(), StatusCode::kInvalidArgument);
}

TEST(HostTargetTest, MoreThanTheMachineHasIsAnError) {
  const std::vector<LoadFile> huge = {{.path = "a", .bytes = uint64_t{1} << 50, .table = nullptr}};
  HostTarget target;
  EXPECT_EQ(target.Begin(huge).code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ems::model
