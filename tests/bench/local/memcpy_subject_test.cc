// What must hold: what is put is what is got, each object in its own place.
#include "bench/local/memcpy_subject.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

class MemcpySubjectTest : public ::testing::TestWithParam<CopyWay> {};
INSTANTIATE_TEST_SUITE_P(Ways, MemcpySubjectTest,
                         ::testing::Values(CopyWay::kMemcpy, CopyWay::kCopyValue));

TEST_P(MemcpySubjectTest, GetsWhatWasPut) {
  const ValueSet values("salt", 100, 3);
  std::vector<std::byte> arena(300), buffers(300);
  MemcpySubject plain(GetParam(), &values, arena);
  const std::vector<uint64_t> objects = {2, 0, 1};
  const Stretch stretch{
      .objects = objects, .keys = {}, .buffers = buffers.data(), .value_bytes = 100};
  for (uint64_t i = 0; i < 3; ++i) values.Fill(objects[i], 1, stretch.Buffer(i));
  ASSERT_TRUE(plain.Call(SideOp::kPutOrdinary, 0, stretch, 0, 3).ok());
  EXPECT_TRUE(values.Matches(1, 1, ConstBytes(arena).subspan(100, 100)));
  buffers.assign(300, std::byte{0xee});
  ASSERT_TRUE(plain.Call(SideOp::kGet, 0, stretch, 1, 1).ok());
  EXPECT_TRUE(values.Matches(0, 1, stretch.Buffer(1)));
  EXPECT_EQ(stretch.Buffer(0)[0], std::byte{0xee});
}

}  // namespace
}  // namespace ems::bench
