#include "mp_controller/view/view_cache.h"

#include <gtest/gtest.h>

#include "common/thread_pool.h"

namespace ems {
namespace {

std::shared_ptr<const DhtView> View(uint64_t term, uint64_t epoch) {
  return *DhtView::Make(ViewVersion(term, epoch), {}, SlotTable(), false);
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

TEST(ViewCacheTest, WaitsEndWithTheDeadline) {
  ViewCache cache;
  EXPECT_EQ(cache.WaitForView(ViewVersion(1, 1), Now()), nullptr);
  EXPECT_FALSE(cache.WaitForNamespace("a", Now()).has_value());
}

TEST(ViewCacheTest, WaitersWakeWhenWhatTheyWaitForComes) {
  ViewCache cache;
  ViewCache::View seen;
  std::optional<NamespaceInfo> found;
  Thread view_waiter("wait-view", [&] { seen = cache.WaitForView(ViewVersion(1, 3), Soon()); });
  Thread name_waiter("wait-name", [&] { found = cache.WaitForNamespace("b", Soon()); });
  for (uint64_t i = 1; i <= 3; ++i) cache.Install(View(1, i));
  cache.Install(Table(1, "a"));
  cache.Install(Table(2, "b"));
  view_waiter.Join();
  name_waiter.Join();
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen->version(), ViewVersion(1, 3));
  EXPECT_TRUE(found.has_value());
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
