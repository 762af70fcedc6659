// What must hold: each subscriber gets what it lacks, whole or as a delta of 200 bytes; a message
// is encoded once for all; subscribers are bounded.
#include "mp_controller/publish/view_publisher.h"

#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "mp_controller/publish/next_history.h"
#include "mp_controller/publish/view_builder.h"
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

// As a watcher reads them: both parts are one message.
v1::ClusterUpdate Read(const PublishedUpdate& update) {
  std::string bytes;
  if (update.view != nullptr) bytes += *update.view;
  if (update.namespaces != nullptr) bytes += *update.namespaces;
  v1::ClusterUpdate read;
  EXPECT_TRUE(read.ParseFromString(bytes));
  return read;
}

TEST(ViewPublisherTest, WholeFirstThenDeltasThenNothing) {
  ViewPublisher publisher(10);
  WatchCursor cursor;
  EXPECT_TRUE(publisher.Next(&cursor).empty());
  publisher.Publish(View(1));
  EXPECT_TRUE(Read(publisher.Next(&cursor)).has_view());
  EXPECT_TRUE(publisher.Next(&cursor).empty());
  publisher.Publish(View(2));
  publisher.Publish(View(3));
  const v1::ClusterUpdate update = Read(publisher.Next(&cursor));
  ASSERT_TRUE(update.has_delta()) << "one delta over both";
  const auto applied = DhtView::Apply(*View(1), update.delta());
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ((*applied)->version(), ViewVersion(1, 3));
}

TEST(ViewPublisherTest, LaggardGetsTheWholeView) {
  ViewPublisher publisher(10);
  publisher.Publish(View(1));
  WatchCursor cursor;
  ASSERT_FALSE(publisher.Next(&cursor).empty());
  for (uint64_t i = 2; i <= kDeltaBasesMax; ++i) publisher.Publish(View(i));
  WatchCursor kept = cursor;
  EXPECT_TRUE(Read(publisher.Next(&kept)).has_delta());
  publisher.Publish(View(kDeltaBasesMax + 1));
  EXPECT_TRUE(Read(publisher.Next(&cursor)).has_view());
}

TEST(ViewPublisherTest, AMessageIsEncodedOnceForAllWhoSendIt) {
  ViewPublisher publisher(10);
  WatchCursor a, b, c;
  publisher.Publish(View(1));
  const PublishedUpdate first = publisher.Next(&a);
  EXPECT_EQ(publisher.Next(&b).view, first.view) << "the same bytes, not equal ones";
  publisher.Publish(View(2));
  EXPECT_EQ(publisher.Next(&a).view, publisher.Next(&b).view);
  publisher.Publish(View(3));
  EXPECT_NE(publisher.Next(&a).view, publisher.Next(&c).view) << "one begins, the other goes on";
}

TEST(ViewPublisherTest, NamespacesTravelOnlyWhenChanged) {
  ViewPublisher publisher(10);
  auto table = std::make_shared<NamespaceTable>();
  table->version = 1;
  publisher.Publish(View(1));
  publisher.Publish(ViewCache::Namespaces(table));
  WatchCursor cursor, other;
  const PublishedUpdate both = publisher.Next(&cursor);
  EXPECT_TRUE(Read(both).has_namespaces());
  EXPECT_TRUE(Read(both).has_view());
  EXPECT_EQ(publisher.Next(&other).namespaces, both.namespaces) << "encoded once";
  publisher.Publish(View(2));
  EXPECT_FALSE(Read(publisher.Next(&cursor)).has_namespaces());
}

TEST(ViewPublisherTest, WatchersAreBoundedAndTold) {
  ViewPublisher publisher(2);
  std::vector<std::shared_ptr<CountingSubscriber>> all;
  all.reserve(3);
  for (int i = 0; i < 3; ++i) all.push_back(std::make_shared<CountingSubscriber>());
  EXPECT_TRUE(publisher.Subscribe(all[0]).ok());
  EXPECT_TRUE(publisher.Subscribe(all[1]).ok());
  EXPECT_EQ(publisher.Subscribe(all[2]).code(), StatusCode::kResourceExhausted);
  publisher.Publish(View(1));
  EXPECT_EQ(all[0]->published, 0) << "whoever publishes calls nobody";
  publisher.NotifyAll();
  publisher.Unsubscribe(all[0]);
  publisher.NotifyAll();
  EXPECT_EQ(all[0]->published, 1);
  EXPECT_EQ(all[1]->published, 2);
  EXPECT_EQ(all[2]->published, 0);
  publisher.Close();
  EXPECT_EQ(all[1]->closed, 1);
  EXPECT_EQ(publisher.watchers(), 0u);
  EXPECT_EQ(publisher.Subscribe(all[0]).code(), StatusCode::kUnavailable);
}

TEST(ViewPublisherTest, AChangeIsAwaitedAndCountedOnce) {
  ViewPublisher publisher(2);
  uint64_t seen = 0;
  publisher.Publish(View(1));
  publisher.Publish(View(2));
  EXPECT_TRUE(publisher.AwaitChange(&seen)) << "both at once";
  StopFlag woken;
  {
    Thread waiter("waiter", [&] {
      EXPECT_TRUE(publisher.AwaitChange(&seen));
      woken.Set();
      EXPECT_FALSE(publisher.AwaitChange(&seen));
    });
    publisher.Publish(View(3));
    EXPECT_TRUE(woken.WaitFor(std::chrono::seconds(10)));
    publisher.Close();
  }
}

// A thousand servers with names and addresses as they are in a data centre.
class ManyServers {
 public:
  explicit ManyServers(uint32_t count) {
    for (uint32_t id = 1; id <= count; ++id) nodes_.push_back(Node(id));
  }
  static NodeInfo Node(uint32_t id) {
    NodeInfo node;
    node.id = NodeId(id);
    node.name = fmt::format("mp-server-{:04}", id);
    node.boot_id = Hash64({}, id);
    node.data_address = fmt::format("10.17.{}.{}:7500", id / 250, id % 250);
    node.host_id = fmt::format("node-{:04}", id);
    node.http_address = fmt::format("10.17.{}.{}:7501", id / 250, id % 250);
    node.capacity_bytes = uint64_t{256} << 30;
    node.lineage = Hash64({}, id + 10'000);
    node.folder_id = Hash64({}, id + 20'000);
    return node;
  }
  std::vector<NodeInfo>& nodes() { return nodes_; }
  // With slots as the controller gives them out.
  ViewCache::View Next() {
    std::vector<NodeWeight> weights;
    for (const NodeInfo& node : nodes_) weights.push_back({node.id, node.capacity_bytes});
    slots_ = BuildSlots(slots_, weights);
    return NextWith(slots_);
  }
  ViewCache::View NextWith(const SlotTable& slots) {
    ++epoch_;
    auto history = NextHistory(view_.get(), nodes_, slots, epoch_, 77);
    view_ = *DhtView::Make(ViewVersion(3, epoch_), nodes_, slots, false, std::move(history));
    return view_;
  }
  const SlotTable& slots() const { return slots_; }

 private:
  std::vector<NodeInfo> nodes_;
  SlotTable slots_;
  uint64_t epoch_ = 20'000;
  ViewCache::View view_;
};

TEST(ViewPublisherTest, OneChangeOfAThousandServersTakes200Bytes) {
  ManyServers servers(1000);
  ViewPublisher publisher(1);
  publisher.Publish(servers.Next());
  WatchCursor cursor;
  const size_t whole = publisher.Next(&cursor).view->size();
  EXPECT_LE(whole, 180'000u);
  const auto bytes = [&](const ViewCache::View& view) {
    const ViewCache::View before = publisher.view();
    publisher.Publish(view);
    const PublishedUpdate update = publisher.Next(&cursor);
    const auto applied = DhtView::Apply(*before, Read(update).delta());
    EXPECT_TRUE(applied.ok()) << applied.status();
    EXPECT_EQ((*applied)->Fingerprint(), view->Fingerprint());
    return update.view->size();
  };
  servers.nodes().erase(servers.nodes().begin() + 500);
  EXPECT_LE(bytes(servers.Next()), 200u) << "a server goes";
  servers.nodes().push_back(ManyServers::Node(1001));
  EXPECT_LE(bytes(servers.Next()), 200u) << "one comes";
  servers.nodes()[7].boot_id = 1;
  servers.nodes()[7].lineage = 2;
  EXPECT_LE(bytes(servers.Next()), 200u) << "one comes back with another storage";
  SlotTable slots = servers.slots();
  slots.set_owner(SlotId(9000), servers.nodes()[3].id);
  EXPECT_LE(bytes(servers.NextWith(slots)), 200u) << "a slot goes";
}

}  // namespace
}  // namespace ems::controller
