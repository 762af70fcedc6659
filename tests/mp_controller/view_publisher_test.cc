#include "mp_controller/view_publisher.h"

#include <gtest/gtest.h>

#include "mp_controller/controller_store.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

struct CountingSubscriber final : Subscriber {
  void OnPublished() override { ++published; }
  void OnClosed() override { ++closed; }
  int published = 0;
  int closed = 0;
};

std::shared_ptr<const DhtView> View(uint64_t epoch) {
  NodeInfo node;
  node.id = NodeId(1);
  SlotTable slots;
  slots.set_owner(SlotId(static_cast<uint16_t>(epoch)), NodeId(1));
  return *DhtView::Make(ViewVersion(1, epoch), {node}, slots, false);
}

TEST(ViewPublisherTest, WholeFirstThenDeltasThenNothing) {
  ViewPublisher publisher(10);
  WatchCursor cursor;
  v1::ClusterUpdate update;
  EXPECT_FALSE(publisher.Next(&cursor, &update));
  publisher.Publish(View(1));
  ASSERT_TRUE(publisher.Next(&cursor, &update));
  EXPECT_TRUE(update.has_view());
  EXPECT_FALSE(publisher.Next(&cursor, &update));
  publisher.Publish(View(2));
  publisher.Publish(View(3));
  ASSERT_TRUE(publisher.Next(&cursor, &update));
  ASSERT_TRUE(update.has_delta()) << "one delta over both";
  const auto applied = DhtView::Apply(*View(1), update.delta());
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->version(), ViewVersion(1, 3));
}

TEST(ViewPublisherTest, LaggardGetsTheWholeView) {
  ViewPublisher publisher(10);
  publisher.Publish(View(1));
  WatchCursor cursor;
  v1::ClusterUpdate update;
  ASSERT_TRUE(publisher.Next(&cursor, &update));
  for (uint64_t i = 2; i <= 2 + kViewsKept; ++i) publisher.Publish(View(i));
  ASSERT_TRUE(publisher.Next(&cursor, &update));
  EXPECT_TRUE(update.has_view());
}

TEST(ViewPublisherTest, NamespacesTravelOnlyWhenChanged) {
  ViewPublisher publisher(10);
  auto table = std::make_shared<NamespaceTable>();
  table->version = 1;
  publisher.Publish(View(1));
  publisher.Publish(ViewCache::Namespaces(table));
  WatchCursor cursor;
  v1::ClusterUpdate update;
  ASSERT_TRUE(publisher.Next(&cursor, &update));
  EXPECT_TRUE(update.has_namespaces());
  publisher.Publish(View(2));
  ASSERT_TRUE(publisher.Next(&cursor, &update));
  EXPECT_FALSE(update.has_namespaces());
}

TEST(ViewPublisherTest, WatchersAreBoundedAndTold) {
  ViewPublisher publisher(2);
  std::vector<std::shared_ptr<CountingSubscriber>> all;
  for (int i = 0; i < 3; ++i) all.push_back(std::make_shared<CountingSubscriber>());
  EXPECT_TRUE(publisher.Subscribe(all[0]).ok());
  EXPECT_TRUE(publisher.Subscribe(all[1]).ok());
  EXPECT_EQ(publisher.Subscribe(all[2]).code(), StatusCode::kResourceExhausted);
  publisher.Publish(View(1));
  publisher.Unsubscribe(all[0]);
  publisher.Publish(View(2));
  EXPECT_EQ(all[0]->published, 1);
  EXPECT_EQ(all[1]->published, 2);
  EXPECT_EQ(all[2]->published, 0);
  publisher.Close();
  EXPECT_EQ(all[1]->closed, 1);
  EXPECT_EQ(publisher.watchers(), 0u);
  EXPECT_EQ(publisher.Subscribe(all[0]).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::controller
