// What must hold: what can be settled here is, the rest is left to the socket and counted by its
// reason; the checksum is looked at when it was asked for.
#include "mp_sdk/internal/one_sided.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/object_key.h"
#include "common/thread_cell.h"
#include "common/thread_pool.h"
#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/shm_peer.h"

namespace ems::internal {
namespace {

using testing::Eventually;
using testing::MakeValue;
using testing::PoolImage;
using testing::ShmPeer;
using namespace std::chrono_literals;

MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

struct OneSidedTest : ::testing::Test {
  OneSidedTest() {
    ns.ref = PoolImage::kNs;
    sided = std::make_unique<OneSided>(&servers, ns);
    peer.Start();
  }
  ViewCache::View ViewOf(uint64_t epoch) {
    NodeInfo node;
    node.id = NodeId(4);
    node.unix_path = peer.path();
    node.host_id = "here";
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), node.id);
    return *DhtView::Make(ViewVersion(1, epoch), {node}, slots, false);
  }
  // Attaches and reads until all memories are here.
  void Follow() {
    servers.Follow(ViewOf(4));  // PoolImage::kView
    ASSERT_TRUE(Eventually([&] { return Get("warm").has_value(); }));
  }
  std::optional<Result<uint64_t>> Get(std::string_view key, Verify verify = Verify::kDefault) {
    GetOptions options;
    options.verify = verify;
    return sided->Read(key, {}, {.into = {}, .grow = &value}, options);
  }
  std::optional<Result<ObjectView>> View(std::string_view key, Verify verify = Verify::kDefault) {
    GetOptions options;
    options.verify = verify;
    return sided->View({.key = key}, options);
  }

  PoolImage image;
  ShmPeer peer{&image};
  LocalServers servers{LocalServers::Options{
      .ns = PoolImage::kNs, .attach_timeout = 500ms, .host_id = "here", .token = {}}};
  NamespaceInfo ns;
  std::unique_ptr<OneSided> sided;
  std::string value;
};

struct WarmTest : OneSidedTest {
  void SetUp() override {
    image.Put(kMiB, "warm", "warm", 1);
    Follow();
  }
};

TEST_F(OneSidedTest, BeforeTheFirstViewTheServerIsAsked) {
  EXPECT_FALSE(Get("key"));
  EXPECT_EQ(sided->stats().not_attached, 0U) << "nobody knows where it is";
}

TEST_F(OneSidedTest, MemoriesThatAreNotHereYetAreAskedForMeanwhile) {
  image.Put(kMiB, "warm", "warm", 1);
  Follow();
  EXPECT_GT(sided->stats().not_attached, 0U);
  EXPECT_EQ(sided->stats().one_sided, 1U);
  EXPECT_EQ(peer.segments_asked, 1);
  EXPECT_EQ(value, "warm");
}

TEST_F(WarmTest, HitsAndMissesAreSettledAndTouched) {
  const std::string stored = MakeValue("ns", "key", 1, 10'000);
  image.Put(0, "key", stored, 9);
  const uint64_t touches = peer.page().touch_count;
  const uint64_t before = sided->stats().one_sided;
  EXPECT_EQ(**Get("key"), stored.size());
  EXPECT_EQ(value, stored);
  EXPECT_EQ(Get("none")->status().code(), StatusCode::kNotFound);
  EXPECT_EQ(**sided->Lookup({.key = "key"}, {}), stored.size());
  EXPECT_EQ(sided->Lookup({.key = "none"}, {})->status().code(), StatusCode::kNotFound);
  EXPECT_EQ(sided->stats().one_sided, before + 4);
  EXPECT_EQ(peer.page().touch_count, touches + 2) << "hits alone";
  EXPECT_EQ(peer.page().touches[touches].hash_lo, KeyHash("key").lo);
  EXPECT_TRUE(sided->Lookup({.key = "key"}, {.touch = false}));
  EXPECT_EQ(peer.page().touch_count, touches + 2);
}

TEST_F(WarmTest, TheServerHearsOfWhatIsSettledHereAndOfNothingElse) {
  image.Put(0, "key", "0123456789", 9);
  const shm::ReadCell& cell = peer.page().read_cells[ThreadCell()];
  const uint64_t hits = cell.hits;
  const uint64_t bytes = cell.bytes;
  EXPECT_TRUE(Get("key"));
  EXPECT_TRUE(View("key"));
  std::string part(4, '\0');
  EXPECT_TRUE(sided->Read("key", {}, {.into = Room(&part), .ranged = true, .offset = 5}, {}));
  EXPECT_TRUE(sided->Read("key", {}, {.into = Room(&part)}, {})) << "there, and too long";
  EXPECT_TRUE(Get("none"));
  EXPECT_TRUE(sided->Lookup({.key = "key"}, {}));
  const std::vector<KeyItem> keys{{.key = "key"}, {.key = "none"}, {.key = "neither"}};
  std::vector<Result<uint64_t>> lengths(keys.size(), Result<uint64_t>(uint64_t{0}));
  std::vector<uint32_t> left;
  sided->MultiLookup(keys, {}, lengths, &left);
  EXPECT_EQ(cell.hits, hits + 4);
  EXPECT_EQ(cell.bytes, bytes + 10 + 10 + 4);
  EXPECT_EQ(cell.misses, 1u);
  EXPECT_EQ(cell.found, 2u);
  EXPECT_EQ(cell.absent, 2u);
  EXPECT_GT(peer.page().read_cell_end, ThreadCell());
  for (auto& shard : image.page().shards) shard = shm::ShardWord(PoolImage::kTableId, true);
  EXPECT_FALSE(Get("none")) << "the server is asked";
  EXPECT_EQ(cell.misses, 1u) << "and counts it";
}

TEST_F(WarmTest, LookUpsOfSampledKeysAreReportedHitsAndMisses) {
  image.Put(0, "key", "0123456789", 9);
  const std::atomic<uint64_t>& count = peer.page().sample_count;
  EXPECT_TRUE(Get("key"));
  EXPECT_EQ(count, 0u) << "none is sampled";
  image.page().sample_below = KeyHash("key").lo + 1;
  EXPECT_TRUE(Get("key"));
  EXPECT_TRUE(sided->Lookup({.key = "key"}, {}));
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(peer.page().samples[0].hash_lo, KeyHash("key").lo);
  EXPECT_EQ(peer.page().samples[0].hash_hi, KeyHash("key").hi);
  image.page().sample_below = KeyHash("key").lo;
  EXPECT_TRUE(Get("key"));
  EXPECT_EQ(count, 2u);
  image.page().sample_below = UINT64_MAX;
  EXPECT_TRUE(Get("none"));
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(peer.page().samples[2].hash_lo, KeyHash("none").lo);
  for (auto& shard : image.page().shards) shard = shm::ShardWord(PoolImage::kTableId, true);
  EXPECT_FALSE(Get("none")) << "the server is asked, and samples it itself";
  EXPECT_EQ(count, 3u);
}

TEST_F(WarmTest, ASampleOfTheCallsThatAreSettledHereIsTimed) {
  CallLatencies latencies;
  OneSided timed(&servers, ns, &latencies);
  const auto timed_calls = [&] {
    const std::vector<CallLatency> calls = latencies.Calls();
    return calls.empty() ? 0 : calls[0].latencies.count;
  };
  for (uint32_t i = 0; i < 3 * kOneSidedSample; ++i)
    EXPECT_TRUE(timed.Read("warm", {}, {.into = {}, .grow = &value}, {}));
  EXPECT_EQ(timed_calls(), 3u);
  for (auto& shard : image.page().shards) shard = shm::ShardWord(PoolImage::kTableId, true);
  for (uint32_t i = 0; i < 3 * kOneSidedSample; ++i)
    EXPECT_FALSE(timed.Read("none", {}, {.into = {}, .grow = &value}, {}));
  EXPECT_EQ(timed_calls(), 3u) << "what takes the socket is timed there";
}

TEST_F(WarmTest, KeysThatAreNoKeysAreLeftToTheSocket) {
  EXPECT_FALSE(Get(""));
  EXPECT_FALSE(Get(std::string(kKeyBytesMax + 1, 'x')));
}

TEST_F(WarmTest, RoomsAndRangesThatDoNotFitAreSettled) {
  image.Put(0, "key", "0123456789", 9);
  std::string small(5, '\0');
  EXPECT_EQ(sided->Read("key", {}, {.into = Room(&small)}, {})->status().code(),
            StatusCode::kOutOfRange);
  EXPECT_EQ(**sided->Read("key", {}, {.into = Room(&small), .ranged = true, .offset = 5}, {}), 5U);
  EXPECT_EQ(small, "56789");
  EXPECT_EQ(sided->Read("key", {}, {.into = Room(&small), .ranged = true, .offset = 6}, {})
                ->status()
                .code(),
            StatusCode::kOutOfRange);
}

TEST_F(WarmTest, ANewerViewThanTheServersLeavesReadsToTheSocket) {
  servers.Follow(ViewOf(5));
  EXPECT_FALSE(Get("warm"));
  EXPECT_EQ(sided->stats().not_current, 1U);
  image.page().view = ViewVersion(1, 5).packed();
  EXPECT_TRUE(Get("warm"));
}

TEST_F(WarmTest, AnIndexOutOfItsLeaseIsNotRead) {
  image.page().readable_until_ns = Clock::System().Now().time_since_epoch().count() - 1;
  EXPECT_FALSE(Get("warm"));
  EXPECT_FALSE(sided->Lookup({.key = "none"}, {}));
  EXPECT_EQ(sided->stats().not_current, 2U);
}

TEST_F(WarmTest, AMissThatProvesNothingIsLeftToTheSocket) {
  for (auto& shard : image.page().shards) shard = shm::ShardWord(PoolImage::kTableId, true);
  EXPECT_FALSE(Get("none"));
  EXPECT_EQ(sided->stats().not_conclusive, 1U);
  EXPECT_TRUE(Get("warm"));
}

TEST_F(WarmTest, TheChecksumIsLookedAtAsAsked) {
  image.Put(0, "key", "0123456789", 9);
  image.segment_file().bytes()[image.header(0).payload_offset] ^= std::byte{1};
  EXPECT_FALSE(Get("key", Verify::kAlways));
  EXPECT_FALSE(Get("key", Verify::kDefault)) << "the namespace says always";
  EXPECT_EQ(sided->stats().mismatches, 2U);
  EXPECT_TRUE(Get("key", Verify::kNever));
  EXPECT_FALSE(View("key", Verify::kAlways));
  int caught = 0;
  for (int i = 0; i < 128; ++i) caught += View("key") ? 0 : 1;
  EXPECT_EQ(caught, 2) << "one view in 64";
}

TEST_F(WarmTest, ViewsAreHeldAndCounted) {
  const std::string stored = MakeValue("ns", "key", 1, 10'000);
  image.Put(0, "key", stored, 9);
  auto view = View("key");
  ASSERT_TRUE(view && view->ok());
  EXPECT_EQ(AsText((*view)->bytes()), stored);
  EXPECT_EQ(peer.page().hazards[peer.page().hazard_end - 1], shm::GenerationTag(9, KeyHash("key")));
  EXPECT_EQ(View("none")->status().code(), StatusCode::kNotFound);
  std::vector<ObjectView> views;
  while (true) {
    auto one_more = View("key");
    ASSERT_TRUE(one_more);
    if (!one_more->ok()) {
      EXPECT_EQ(one_more->status().code(), StatusCode::kResourceExhausted);
      break;
    }
    views.push_back(**std::move(one_more));
  }
  EXPECT_EQ(views.size(), shm::kHazardsMax - 1);
}

TEST_F(WarmTest, ManyKeysAreSettledInOneSweep) {
  std::vector<std::string> names;
  std::vector<KeyItem> keys;
  names.reserve(100);
  for (int i = 0; i < 100; ++i) names.push_back("many" + std::to_string(i));
  uint64_t at = 0;
  for (size_t i = 0; i < names.size(); i += 3) {
    const std::string stored = MakeValue("ns", names[i], 1, 300 + i);
    image.Put(at, names[i], stored, 100 + i);
    at += PoolImage::SizeOf(names[i], stored);
  }
  keys.reserve(names.size() + 1);
  for (const std::string& name : names) keys.push_back({.key = name});
  keys.push_back({.key = ""});
  std::vector<Result<uint64_t>> lengths(keys.size(), Result<uint64_t>(uint64_t{0}));
  std::vector<uint32_t> left;
  sided->MultiLookup(keys, {}, lengths, &left);
  EXPECT_THAT(left, ::testing::ElementsAre(100U));
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(lengths[i].ok(), i % 3 == 0);
    EXPECT_TRUE(i % 3 != 0 || *lengths[i] == 300 + i);
  }
  std::vector<std::string> rooms(names.size(), std::string(500, '\0'));
  std::vector<GetItem> gets;
  for (size_t i = 0; i < names.size(); ++i) {
    gets.push_back({.key = names[i], .into = Room(&rooms[i])});
  }
  left.clear();
  const Deadline later = Deadline::After(std::chrono::hours(1));
  sided->MultiRead(std::span<const GetItem>(gets), {}, later, std::span(lengths).first(gets.size()),
                   &left);
  EXPECT_THAT(left, ::testing::IsEmpty());
  for (size_t i = 0; i < names.size(); i += 3) {
    EXPECT_EQ(rooms[i].substr(0, *lengths[i]), MakeValue("ns", names[i], 1, 300 + i));
  }
}

TEST_F(WarmTest, CopyingStopsSoonAfterTheDeadline) {
  const std::string stored = MakeValue("ns", "key", 1, kMiB);
  image.Put(0, "key", stored, 9);
  std::vector<std::string> rooms(12, std::string(stored.size(), '\0'));
  std::vector<GetItem> gets;
  for (std::string& room : rooms) gets.push_back({.key = "key", .into = Room(&room)});
  std::vector<Result<uint64_t>> lengths(gets.size(), Result<uint64_t>(uint64_t{0}));
  std::vector<uint32_t> left;
  sided->MultiRead(std::span<const GetItem>(gets), {}, Deadline::After(0s), std::span(lengths),
                   &left);
  EXPECT_THAT(left, ::testing::ElementsAre(5U, 6U, 7U, 8U, 9U, 10U, 11U)) << "4 MiB, then a look";
  for (size_t i = 0; i < rooms.size(); ++i) EXPECT_EQ(rooms[i] == stored, i < 5) << i;
}

TEST_F(WarmTest, AServerThatIsGoneLeavesReadsToTheSocketAtOnce) {
  peer.HangUp();
  EXPECT_TRUE(Eventually([&] { return !Get("warm").has_value(); }));
  EXPECT_GE(sided->stats().not_attached, 1U);
}

// Sessions and routes come and go under the readers. Under ASan and TSan a reader that is let down
// shows.
TEST_F(WarmTest, ReadersSurviveServersThatComeAndGo) {
  const std::string stored = MakeValue("ns", "key", 1, 3000);
  image.Put(0, "key", stored, 9);
  std::atomic<bool> stop{false};
  std::atomic<int> hits{0}, wrong{0};
  std::vector<Thread> readers;
  readers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back("reader", [&] {
      std::string copy;
      while (!stop.load()) {
        const auto read = sided->Read("key", {}, {.into = {}, .grow = &copy}, {});
        if (read && read->ok()) copy == stored ? hits++ : wrong++;
        const auto view = sided->View({.key = "key"}, {});
        if (view && view->ok() && AsText((*view)->bytes()) != stored) wrong++;
      }
    });
  }
  for (uint64_t epoch = 5; epoch < 60; ++epoch) {
    const ViewCache::View empty = *DhtView::Make(ViewVersion(1, epoch), {}, SlotTable(), false);
    servers.Follow(epoch % 2 == 0 ? ViewOf(epoch) : empty);
    image.page().view = ViewVersion(1, epoch).packed();
    const int before = hits;
    if (epoch % 8 == 0) {
      EXPECT_TRUE(Eventually([&] { return hits > before; }));
    }
  }
  stop.store(true);
  readers.clear();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ems::internal
