// What must hold: events are of the namespace that is named and of no other, on both media; a
// namespace that is created again makes followers ask for the state.
#include "mp_server/kv_event_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bitset>

#include "common/logging.h"
#include "common/object_key.h"
#include "proto/config.pb.h"
#include "tests/mp_server/kv_events/zmq_peer.h"

namespace ems::server {
namespace {

using kv_events::BlockEvent;
using kv_events::Medium;
using ::testing::ElementsAre;

NamespaceTable Table(uint32_t generation) {
  NamespaceTable table;
  for (const uint32_t id : {1u, 2u}) {
    NamespaceInfo info;
    info.ref = {NamespaceId(id), generation};
    info.name = id == 1 ? "kv" : "other";
    table.by_id[info.ref.id] = info;
  }
  return table;
}

config::KvEventsConfig Config() {
  config::KvEventsConfig config;
  config.set_listen("127.0.0.1:0");
  config.set_replay_listen("127.0.0.1:0");
  config.set_name_space("kv");
  config.set_queue_events(1024);
  config.set_replay_batches(100);
  config.set_waiting_max(100);
  config.set_batch_ms(1);
  return config;
}

std::vector<BlockEvent> Drain(KvEventFeed* feed) {
  std::vector<BlockEvent> events;
  feed->events()->Drain(1000, &events);
  return events;
}

TEST(KvEventFeedTest, WithoutAnAddressThereIsNone) {
  EXPECT_EQ(KvEventFeed::Make(config::KvEventsConfig()), nullptr);
  EXPECT_NE(KvEventFeed::Make(Config()), nullptr);
}

TEST(KvEventFeedTest, ANamespaceThatIsNotThereIsWarnedOfOnce) {
  ASSERT_TRUE(log::Init("info").ok());
  KvEventFeed feed(Config());
  NamespaceTable empty;
  ::testing::internal::CaptureStderr();
  feed.SetNamespaces(empty);  // none has been heard of
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  empty.version = 1;
  ::testing::internal::CaptureStderr();
  feed.SetNamespaces(empty);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("there is no namespace kv"));
  ::testing::internal::CaptureStderr();
  feed.SetNamespaces(empty);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  feed.SetNamespaces(Table(5));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("it exists now"));
}

TEST(KvEventFeedTest, HearsOfOneNamespaceOnTheSsd) {
  KvEventFeed feed(Config());
  const ssd::ObjectName mine{{NamespaceId(1), 5}, KeyHash("a")};
  const ssd::ObjectName others{{NamespaceId(2), 5}, KeyHash("a")};
  feed.OnStored(mine);  // not known yet which one that is
  EXPECT_FALSE(feed.SetNamespaces(Table(5)));
  feed.OnStored(mine);
  feed.OnStored(others);
  feed.OnStored({{NamespaceId(1), 4}, KeyHash("a")});
  feed.OnDropped(mine);
  EXPECT_THAT(Drain(&feed), ElementsAre(BlockEvent{mine.hash, Medium::kSsd, true},
                                        BlockEvent{mine.hash, Medium::kSsd, false}));
}

TEST(KvEventFeedTest, ANamespaceMadeAnewIsAnother) {
  KvEventFeed feed(Config());
  EXPECT_FALSE(feed.SetNamespaces(Table(5)));
  EXPECT_FALSE(feed.SetNamespaces(Table(5)));
  EXPECT_TRUE(feed.SetNamespaces(Table(6)));
  feed.Restate();
  EXPECT_EQ(feed.events()->lost(), 1u);
  EXPECT_TRUE(feed.SetNamespaces({}));
}

TEST(KvEventFeedTest, HearsOfOneNamespaceInMemoryAndListsIt) {
  KvEventFeed feed(Config());
  SegmentPool::Options options;
  options.bytes = 16 * kMiB;
  options.segment_bytes = 4 * kMiB;
  options.huge_pages = fabric::HugePages::kOff;
  SegmentPool pool(options);
  ObjectStore store({.pool = &pool, .events = feed.events(), .events_of = feed.name_space()});
  EXPECT_FALSE(feed.SetNamespaces(Table(5)));
  store.SetNamespaces(Table(5), 1.0);
  store.SetOwnedSlots(std::bitset<kSlotCount>().set());
  ASSERT_TRUE(pool.WaitReady(options.bytes, Deadline::After(std::chrono::seconds(30))).ok());
  const auto put = [&](uint32_t id, std::string_view key, uint64_t checksum, bool overwrite) {
    auto room = store.Reserve({NamespaceId(id), 5}, SlotId(0), key, 100);
    ASSERT_TRUE(room.ok()) << ToString(room.status());
    bool stored = false;
    ASSERT_TRUE(
        ObjectStore::Publish(*std::move(room), checksum, {.overwrite = overwrite}, &stored).ok());
  };
  put(1, "a", 1, false);
  put(1, "a", 1, false);  // the same: nothing happens
  put(2, "b", 1, false);
  put(1, "a", 2, true);
  put(1, "c", 1, false);
  EXPECT_TRUE(store.Remove({NamespaceId(1), 5}, "a"));
  const Hash128 a = KeyHash("a"), c = KeyHash("c");
  EXPECT_THAT(Drain(&feed),
              ElementsAre(BlockEvent{a, Medium::kDram, true}, BlockEvent{a, Medium::kDram, false},
                          BlockEvent{a, Medium::kDram, true}, BlockEvent{c, Medium::kDram, true},
                          BlockEvent{a, Medium::kDram, false}));
  std::vector<Hash128> hashes;
  uint64_t shard = 0, bucket = 0;
  while (store.SomeHashes({NamespaceId(1), 5}, &shard, &bucket, &hashes)) {
  }
  EXPECT_THAT(hashes, ElementsAre(c));
  hashes.clear();
  shard = bucket = 0;
  EXPECT_FALSE(store.SomeHashes({NamespaceId(7), 5}, &shard, &bucket, &hashes));
}

TEST(KvEventFeedTest, AnAddressThatCannotBeBoundNamesTheOption) {
  config::KvEventsConfig config = Config();
  config.set_listen("5557");
  KvEventFeed feed(config);
  const Status started = feed.Start(nullptr, nullptr, {});
  EXPECT_EQ(started.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(started)), ::testing::StartsWith("kv_events: "));
}

}  // namespace
}  // namespace ems::server
