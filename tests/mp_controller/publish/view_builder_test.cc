// What must hold: load ≤ 1.05 × share by capacity, movement ≤ 1.1 × what any table would have to
// move, determinism.
#include "mp_controller/publish/view_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace ems::controller {
namespace {

using Nodes = std::vector<NodeWeight>;

// Weights in GiB: equal, every second one 1:8, or 1 … 8 at random.
Nodes MakeNodes(uint32_t count, int kind, std::mt19937* random) {
  Nodes nodes;
  for (uint32_t i = 1; i <= count; ++i) {
    const uint64_t weight = kind == 0 ? 4 : kind == 1 ? (i % 2 == 0 ? 8 : 1) : 1 + (*random)() % 8;
    nodes.push_back({NodeId(i), weight << 30});
  }
  return nodes;
}

double Share(const Nodes& nodes, NodeId id) {
  double all = 0, own = 0;
  for (const auto& node : nodes) {
    all += static_cast<double>(node.capacity_bytes);
    if (node.id == id) own = static_cast<double>(node.capacity_bytes);
  }
  return kSlotCount * own / all;
}

double MaxLoad(const Nodes& nodes, const SlotTable& table) {
  double most = 0;
  for (const auto& node : nodes)
    most = std::max(most, table.CountOf(node.id) / Share(nodes, node.id));
  return most;
}

uint32_t Owned(const Nodes& nodes, const SlotTable& table) {
  uint32_t owned = 0;
  for (const auto& node : nodes) owned += table.CountOf(node.id);
  return owned;
}

// What must move at least: what the nodes that gain share gain.
double Ideal(const Nodes& before, const Nodes& after) {
  double gained = 0;
  for (const auto& node : after)
    gained += std::max(0.0, Share(after, node.id) - Share(before, node.id));
  return gained;
}

class ViewBuilderTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr uint32_t kSeed = 20240711;
  std::mt19937 random_{kSeed};
};

TEST_P(ViewBuilderTest, LoadIsBoundedFromScratch) {
  for (uint32_t count = 2; count <= 64; ++count) {
    const Nodes nodes = MakeNodes(count, GetParam(), &random_);
    const SlotTable table = BuildSlots(SlotTable(), nodes);
    EXPECT_EQ(Owned(nodes, table), kSlotCount);
    EXPECT_LE(MaxLoad(nodes, table), 1.05) << count << " nodes, seed " << kSeed;
  }
}

TEST_P(ViewBuilderTest, JoinsMoveTheirShareOnly) {
  const Nodes all = MakeNodes(64, GetParam(), &random_);
  Nodes nodes(all.begin(), all.begin() + 1);
  SlotTable table = BuildSlots(SlotTable(), nodes);
  double moved_all = 0, ideal_all = 0;
  for (size_t i = 1; i < all.size(); ++i) {
    const Nodes before = nodes;
    nodes.push_back(all[i]);
    const SlotTable next = BuildSlots(table, nodes);
    const double ideal = Ideal(before, nodes);
    // One slot cannot be cut: a share of 10.4 may move 11.
    EXPECT_LE(table.CountMoved(next), std::max(1.1 * ideal, ideal + 1)) << "join " << i;
    EXPECT_LE(MaxLoad(nodes, next), 1.05) << "join " << i;
    moved_all += table.CountMoved(next), ideal_all += ideal;
    table = next;
  }
  EXPECT_LE(moved_all, 1.1 * ideal_all) << "seed " << kSeed;
}

TEST_P(ViewBuilderTest, LeavesMoveWhatTheLeaverHadOnly) {
  Nodes nodes = MakeNodes(64, GetParam(), &random_);
  SlotTable table = BuildSlots(SlotTable(), nodes);
  while (nodes.size() > 2) {
    const auto victim = nodes.begin() + static_cast<long>(random_() % nodes.size());
    const uint32_t had = table.CountOf(victim->id);
    nodes.erase(victim);
    const SlotTable next = BuildSlots(table, nodes);
    EXPECT_LE(table.CountMoved(next), 1.1 * had + 1) << nodes.size() << " left, seed " << kSeed;
    EXPECT_LE(MaxLoad(nodes, next), 1.05) << nodes.size() << " left";
    EXPECT_EQ(Owned(nodes, next), kSlotCount);
    table = next;
  }
}

TEST_P(ViewBuilderTest, WeightChangesMoveTheDifferenceOnly) {
  for (const uint32_t count : {2u, 3u, 8u, 16u, 32u, 64u}) {
    Nodes nodes = MakeNodes(count, GetParam(), &random_);
    const SlotTable table = BuildSlots(SlotTable(), nodes);
    const Nodes before = nodes;
    nodes[random_() % count].capacity_bytes *= 4;
    const SlotTable next = BuildSlots(table, nodes);
    EXPECT_LE(table.CountMoved(next), 1.1 * Ideal(before, nodes) + 1) << count << " nodes";
    EXPECT_LE(MaxLoad(nodes, next), 1.05) << count << " nodes";
  }
}

TEST_P(ViewBuilderTest, SameMembersMoveNothingAndOrderDoesNotMatter) {
  Nodes nodes = MakeNodes(23, GetParam(), &random_);
  const SlotTable table = BuildSlots(SlotTable(), nodes);
  EXPECT_EQ(BuildSlots(table, nodes), table);
  std::shuffle(nodes.begin(), nodes.end(), random_);
  EXPECT_EQ(BuildSlots(SlotTable(), nodes), table);
  EXPECT_EQ(BuildSlots(table, nodes), table);
}

// What it stored would be of no use to it otherwise, and what others stored of theirs lost.
TEST_P(ViewBuilderTest, ANodeThatComesBackIsGivenTheSlotsItHad) {
  for (const uint32_t count : {3u, 8u, 32u, 64u}) {
    const Nodes nodes = MakeNodes(count, GetParam(), &random_);
    const SlotTable table = BuildSlots(SlotTable(), nodes);
    Nodes others = nodes;
    const auto away = others.begin() + static_cast<long>(random_() % count);
    const uint32_t had = table.CountOf(away->id);
    others.erase(away);
    const SlotTable back = BuildSlots(BuildSlots(table, others), nodes);
    EXPECT_LE(table.CountMoved(back), 0.3 * had + 4) << count << " nodes, seed " << kSeed;
  }
}

// Random joins, leaves and weight changes in a row: errors must not add up.
TEST_P(ViewBuilderTest, LongChurnKeepsBothBounds) {
  Nodes nodes = MakeNodes(16, GetParam(), &random_);
  SlotTable table = BuildSlots(SlotTable(), nodes);
  uint32_t next_id = 100;
  double moved = 0, ideal = 0;
  for (int step = 0; step < 150; ++step) {
    const Nodes before = nodes;
    const auto dice = random_() % 3;
    if (dice == 0 && nodes.size() < 64) {
      nodes.push_back({NodeId(next_id++), (1 + random_() % 8) << 30});
    } else if (dice == 1 && nodes.size() > 2) {
      nodes.erase(nodes.begin() + static_cast<long>(random_() % nodes.size()));
    } else {
      nodes[random_() % nodes.size()].capacity_bytes = (1 + random_() % 8) << 30;
    }
    const SlotTable next = BuildSlots(table, nodes);
    ASSERT_LE(MaxLoad(nodes, next), 1.05) << "step " << step << " seed " << kSeed;
    moved += table.CountMoved(next), ideal += Ideal(before, nodes);
    table = next;
  }
  EXPECT_LE(moved, 1.1 * ideal) << "seed " << kSeed;
}

INSTANTIATE_TEST_SUITE_P(Weights, ViewBuilderTest, ::testing::Values(0, 1, 2));

TEST(ViewBuilderEdgeTest, OneNodeOwnsAllAndNoNodeNothing) {
  const SlotTable one = BuildSlots(SlotTable(), {{NodeId(5), 1}});
  EXPECT_EQ(one.CountOf(NodeId(5)), kSlotCount);
  EXPECT_EQ(BuildSlots(one, {}), SlotTable());
}

// With 16384 slots a thousand servers have 16.4 each, some 17: 1.04 × the mean.
TEST(ViewBuilderSizeTest, AThousandServersAreLoadedEvenlyAndMoveLittle) {
  for (const auto& [count, load_max] : {std::pair(100u, 1.02), std::pair(1000u, 1.06)}) {
    Nodes nodes;
    for (uint32_t i = 1; i <= count; ++i) nodes.push_back({NodeId(i), 4});
    const SlotTable table = BuildSlots(SlotTable(), nodes);
    EXPECT_LE(MaxLoad(nodes, table), load_max);
    Nodes more = nodes;
    more.push_back({NodeId(count + 1), 4});
    const SlotTable joined = BuildSlots(table, more);
    EXPECT_LE(table.CountMoved(joined), 1.1 * Ideal(nodes, more)) << count;
    EXPECT_LE(MaxLoad(more, joined), load_max);
    Nodes fewer = nodes;
    fewer.erase(fewer.begin() + count / 2);
    const SlotTable left = BuildSlots(table, fewer);
    EXPECT_EQ(table.CountMoved(left), table.CountOf(NodeId(count / 2 + 1))) << count;
    EXPECT_LE(MaxLoad(fewer, left), load_max);
  }
}

// The controller's loop may stand still for 50 ms: a pair of slot and node takes some 2 ns, a
// logarithm some 20.
TEST(ViewBuilderSizeTest, TheCostOfATableIsBounded) {
  Nodes nodes;
  for (uint32_t i = 1; i <= 1000; ++i) nodes.push_back({NodeId(i), 1 + i % 7});
  BuildCost first;
  const SlotTable table = BuildSlots(SlotTable(), nodes, &first);
  EXPECT_LE(first.scores, uint64_t{kSlotCount} * nodes.size());
  EXPECT_LE(first.logarithms, uint64_t{kSlotCount} * 12);
  BuildCost one;
  Nodes more = nodes;
  more.push_back({NodeId(1001), 4});
  (void)BuildSlots(table, more, &one);
  EXPECT_LE(one.scores, 4000u) << "one server comes";
  BuildCost doubled;
  for (uint32_t i = 2001; i <= 3000; ++i) nodes.push_back({NodeId(i), 1 + i % 7});
  (void)BuildSlots(table, nodes, &doubled);
  EXPECT_LE(doubled.scores, 2 * uint64_t{kSlotCount} * 1000) << "a thousand come at once";
}

TEST(ViewBuilderEdgeTest, TooManyNodesForTheBoundStillGivesEachSlotOneOwner) {
  Nodes nodes;
  for (uint32_t i = 1; i <= 1200; ++i) nodes.push_back({NodeId(i), 1});
  EXPECT_EQ(BuildSlots(SlotTable(), nodes).CountOf(kNoNode), 0u);
}

TEST(ViewBuilderEdgeTest, NodesGetSlotsByTheirCapacity) {
  std::vector<NodeInfo> nodes(2);
  nodes[0].id = NodeId(1);
  nodes[0].capacity_bytes = 3;
  nodes[1].id = NodeId(2);
  nodes[1].capacity_bytes = 1;
  EXPECT_EQ(BuildSlotsOf(SlotTable(), nodes),
            BuildSlots(SlotTable(), {{NodeId(1), 3}, {NodeId(2), 1}}));
}

}  // namespace
}  // namespace ems::controller
