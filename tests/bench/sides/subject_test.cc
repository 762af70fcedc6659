// What must hold: operations have names of their own and a kind.
#include "bench/sides/subject.h"

#include <gtest/gtest.h>

#include <set>

#include "bench/local/memcpy_subject.h"

namespace ems::bench {
namespace {

TEST(SubjectTest, OperationsHaveNamesOfTheirOwn) {
  std::set<std::string_view> names, titles;
  for (int i = 0; i <= static_cast<int>(SideOp::kPutOrdinary); ++i) {
    const auto op = static_cast<SideOp>(i);
    names.insert(OpName(op));
    titles.insert(OpTitle(op));
    EXPECT_FALSE(IsPut(op) && IsGet(op));
  }
  EXPECT_EQ(names.size(), 8U);
  EXPECT_EQ(titles.size(), 8U);
  EXPECT_FALSE(names.contains("?"));
}

TEST(SubjectTest, WhoShowsNothingInPlaceSaysSo) {
  const ValueSet values("salt", 16, 1);
  std::vector<std::byte> arena(16);
  MemcpySubject plain(CopyWay::kMemcpy, &values, arena);
  EXPECT_EQ(plain.View(0, [](ConstBytes) {}).code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ems::bench
