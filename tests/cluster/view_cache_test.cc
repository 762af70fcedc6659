#include "cluster/view_cache.h"

#include <gtest/gtest.h>

#include "common/thread_pool.h"

namespace ems {
namespace {

std::shared_ptr<const DhtView> View(uint64_t term, uint64_t epoch, ClusterId cluster = kNoCluster) {
  return *DhtView::Make(ViewVersion(term, epoch), {}, SlotTable(), false, {}, cluster);
}

std::shared_ptr<const NamespaceTable> Table(uint64_t version, const std::string& name) {
  auto table = std::make_shared<NamespaceTable>();
  table->version = version;
  table->by_id[NamespaceId(1)].name = name;
  return table;
}

Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }
Deadline Now() { return Deadline::After(Duration::zero()); }

TEST(ViewCacheTest, VersionsOnlyGrow) {
  ViewCache cache;
  EXPECT_EQ(cache.view(), nullptr);
  EXPECT_TRUE(cache.Install(View(2, 5)));
  EXPECT_FALSE(cache.Install(View(2, 5)));
  EXPECT_FALSE(cache.Install(View(1, 99)));
  EXPECT_TRUE(cache.Install(View(3, 1)));
  EXPECT_EQ(cache.view()->version(), ViewVersion(3, 1));
  EXPECT_FALSE(cache.Install(ViewCache::View()));
  EXPECT_TRUE(cache.Install(Table(2, "a")));
  EXPECT_FALSE(cache.Install(Table(1, "b")));
  EXPECT_NE(cache.namespaces()->Find("a"), nullptr);
  EXPECT_EQ(cache.namespaces()->Find("b"), nullptr);
}

// For the life of a process: a name that leads elsewhere for a while changes nothing here.
TEST(ViewCacheTest, TheFirstClusterSeenIsTheOnlyOne) {
  ViewCache cache;
  EXPECT_EQ(cache.cluster(), kNoCluster);
  EXPECT_TRUE(cache.Install(View(1, 1)));
  EXPECT_TRUE(cache.Join(kNoCluster).ok()) << "older software names none";
  EXPECT_TRUE(cache.Install(View(1, 2, ClusterId(5))));
  EXPECT_EQ(cache.cluster(), ClusterId(5));
  EXPECT_FALSE(cache.Install(View(9, 9, ClusterId(6))));
  EXPECT_EQ(cache.view()->version(), ViewVersion(1, 2));
  const Status other = cache.Join(ClusterId(6));
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(other).find("cluster 0000000000000006"), std::string_view::npos);
  EXPECT_NE(Message(other).find("cluster 0000000000000005"), std::string_view::npos);
  EXPECT_TRUE(cache.Join(ClusterId(5)).ok());
  EXPECT_TRUE(cache.Install(View(1, 3, ClusterId(5))));
}

TEST(ViewCacheTest, WaitsEndWithTheDeadline) {
  ViewCache cache;
  EXPECT_EQ(cache.WaitForView(ViewVersion(1, 1), Now()), nullptr);
}

TEST(ViewCacheTest, WaitersWakeWhenWhatTheyWaitForComes) {
  ViewCache cache;
  ViewCache::View seen;
  Thread view_waiter("wait-view", [&] { seen = cache.WaitForView(ViewVersion(1, 3), Soon()); });
  for (uint64_t i = 1; i <= 3; ++i) cache.Install(View(1, i));
  view_waiter.Join();
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen->version(), ViewVersion(1, 3));
}

TEST(ViewCacheTest, ManyWritersNeverGoBackwards) {
  ViewCache cache;
  std::vector<Thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back("writer", [&cache, t] {
      for (uint64_t i = 1; i <= 200; ++i) cache.Install(View(1, i * 4 + t));
    });
  }
  ViewVersion last;
  while (last < ViewVersion(1, 803)) {
    const auto view = cache.WaitForView(last, Soon());
    if (view == nullptr) continue;
    ASSERT_GE(view->version(), last);
    last = view->version();
  }
}

}  // namespace
}  // namespace ems
