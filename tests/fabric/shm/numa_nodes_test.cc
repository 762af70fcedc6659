// What must hold: the kernel's lists are read as it writes them, and memory comes from the nodes
// that are named, or it is said why not.
#include "fabric/shm/numa_nodes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "common/bytes.h"

namespace ems::fabric {
namespace {

TEST(NumaNodesTest, ListsAreReadAsTheKernelWritesThem) {
  EXPECT_EQ(ParseNodeList("0"), NumaNodes{0});
  EXPECT_EQ(ParseNodeList("0-2,5"), (NumaNodes{0, 1, 2, 5}));
  EXPECT_EQ(ParseNodeList("3,7-8"), (NumaNodes{3, 7, 8}));
  EXPECT_EQ(ParseNodeList(""), NumaNodes{});
  EXPECT_EQ(ParseNodeList("1,x,3"), NumaNodes{1});
  EXPECT_EQ(ParseNodeList("2-"), NumaNodes{});
  EXPECT_EQ(ParseNodeList("0-4294967295"), NumaNodes{}) << "more than there can be";
  EXPECT_EQ(ParseNodeList("3-1"), NumaNodes{});
}

TEST(NumaNodesTest, NodesAreWrittenInTheirOrder) {
  EXPECT_EQ(NodesText({}), "");
  EXPECT_EQ(NodesText({0, 1, 5}), "0,1,5");
}

TEST(NumaNodesTest, ThisMachinesNodesAreThoseThatMemoryCanBeSpreadOver) {
  const Result<NumaNodes> nodes = UsableNumaNodes();
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_TRUE(std::ranges::is_sorted(*nodes));
  if (nodes->empty()) GTEST_SKIP() << "bound already, or a kernel without nodes";
  void* map = ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  const Status spread = SpreadOver(*nodes, map, kMiB);
  EXPECT_TRUE(spread.ok()) << spread;
  EXPECT_EQ(SpreadOver({kNumaNodesMax - 1}, map, kMiB).code(), StatusCode::kInternal)
      << "no such node";
  ::munmap(map, kMiB);
}

}  // namespace
}  // namespace ems::fabric
