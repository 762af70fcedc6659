// What must hold: parts come to where all servers evict at the same age, and stay there; whatever
// the order in which servers report, they never hold more than the quota together.
#include "mp_controller/quota_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

namespace ems::controller {
namespace {

using std::chrono::duration_cast;
using std::chrono::seconds;

constexpr uint64_t kQuota = 3'000'000;
constexpr Duration kLong = seconds(1000);
constexpr NamespaceRef kRef{NamespaceId(1), 7};

Duration Seconds(double time_s) {
  return duration_cast<Duration>(std::chrono::duration<double>(time_s));
}

uint64_t SumOf(const std::vector<uint64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), uint64_t{0});
}

HeldPart Full(uint64_t bytes, Duration age) {
  return {.part_bytes = bytes,
          .used_bytes = bytes,
          .coldest_age = age,
          .least_bytes = 0,
          .most_bytes = kQuota};
}

TEST(NextPartsTest, EvenAgesStayPut) {
  const std::vector<HeldPart> servers = {Full(900, seconds(100)), Full(1100, seconds(101)),
                                         Full(1000, seconds(99))};
  EXPECT_EQ(NextParts(3000, kLong, servers), (std::vector<uint64_t>{900, 1100, 1000}));
}

TEST(NextPartsTest, BytesMoveToTheYoungerAgeAndNoneAreLost) {
  const auto parts =
      NextParts(2000, kLong, std::vector{Full(1000, seconds(10)), Full(1000, seconds(90))});
  EXPECT_GT(parts[0], 1000U);
  EXPECT_LE(parts[0], 1032U) << "1 in 32 at most";
  EXPECT_EQ(SumOf(parts), 2000U);
}

TEST(NextPartsTest, BoundsHold) {
  std::vector<HeldPart> servers = {Full(1000, seconds(10)), Full(1000, seconds(90))};
  servers[0].most_bytes = 1010;
  EXPECT_EQ(NextParts(2000, kLong, servers), (std::vector<uint64_t>{1010, 990}));
  servers[0].most_bytes = 980;  // it has more already, and the other does not want it
  EXPECT_EQ(NextParts(2000, kLong, servers), (std::vector<uint64_t>{1000, 1000}));
  servers[1].coldest_age = seconds(1);
  EXPECT_EQ(NextParts(2000, kLong, servers), (std::vector<uint64_t>{980, 1020}));
  servers[1].coldest_age = seconds(90);
  servers[0].most_bytes = kQuota;
  servers[1].least_bytes = 995;
  EXPECT_EQ(NextParts(2000, kLong, servers), (std::vector<uint64_t>{1005, 995}));
  servers[1].least_bytes = 1500;  // it has less already
  EXPECT_EQ(NextParts(2000, kLong, servers), (std::vector<uint64_t>{1000, 1000}));
}

TEST(NextPartsTest, WhatIsNotFilledYetDoesNotGrow) {
  std::vector<HeldPart> servers = {Full(1000, seconds(10)), Full(1000, seconds(90))};
  servers[0].used_bytes = 900;
  EXPECT_EQ(NextParts(2000, kLong, servers), (std::vector<uint64_t>{1000, 1000}));
}

TEST(NextPartsTest, AServerWithoutObjectsGivesAndWhatNobodyHoldsIsTakenFirst) {
  std::vector<HeldPart> servers = {Full(1000, seconds(10)), Full(1000, Duration::zero())};
  servers[1].used_bytes = 0;
  EXPECT_EQ(NextParts(2000, kLong, servers), (std::vector<uint64_t>{1031, 969}));
  EXPECT_EQ(NextParts(2100, kLong, servers), (std::vector<uint64_t>{1031, 1000}));
  EXPECT_EQ(NextParts(1000, kLong, servers), (std::vector<uint64_t>{1031, 969}))
      << "and never more";
}

TEST(NextPartsTest, NoServersNoParts) { EXPECT_TRUE(NextParts(1000, kLong, {}).empty()); }

// Servers that are asked for values in a stream of their own: each holds what came in the last
// `age` seconds, as an LRU does, and a part that has grown fills with the stream.
class Streams {
 public:
  explicit Streams(std::vector<double> bytes_a_second) : rates_(std::move(bytes_a_second)) {
    for (size_t i = 0; i < rates_.size(); ++i)
      servers_.push_back({.part_bytes = kQuota / rates_.size(),
                          .used_bytes = 0,
                          .least_bytes = kQuota / rates_.size() / 2,
                          .most_bytes = kQuota / rates_.size() * 2});
  }
  void Run(double time_s) {
    for (size_t i = 0; i < rates_.size(); ++i) {
      HeldPart& server = servers_[i];
      const double filled = static_cast<double>(server.used_bytes) + rates_[i] * time_s;
      server.used_bytes = std::min(server.part_bytes, static_cast<uint64_t>(filled));
      server.coldest_age = Seconds(static_cast<double>(server.used_bytes) / rates_[i]);
    }
  }
  // How many bytes changed hands.
  uint64_t Round(double time_s) {
    const std::vector<uint64_t> next = NextParts(kQuota, Seconds(time_s), servers_);
    EXPECT_LE(SumOf(next), kQuota);
    uint64_t moved = 0;
    for (size_t i = 0; i < next.size(); ++i) {
      EXPECT_GE(next[i], servers_[i].least_bytes);
      EXPECT_LE(next[i], servers_[i].most_bytes);
      moved += next[i] - std::min(next[i], servers_[i].part_bytes);
      servers_[i].part_bytes = next[i];
      servers_[i].used_bytes = std::min(servers_[i].used_bytes, next[i]);
    }
    Run(0);
    return moved;
  }
  // The oldest age against the youngest.
  double Spread() const {
    const auto [low, high] = std::ranges::minmax(
        servers_, {}, [](const HeldPart& server) { return server.coldest_age; });
    return static_cast<double>(high.coldest_age.count()) /
           static_cast<double>(low.coldest_age.count());
  }
  const std::vector<HeldPart>& servers() const { return servers_; }

 private:
  const std::vector<double> rates_;
  std::vector<HeldPart> servers_;
};

TEST(NextPartsTest, SkewedLoadsComeToOneAgeAndStayThere) {
  for (const double round_s : {1.0, 10.0, 100.0}) {
    Streams streams({7000, 10'000, 16'000});
    streams.Run(10'000);
    EXPECT_GT(streams.Spread(), 2);
    for (int i = 0; i < 400; ++i) {
      (void)streams.Round(round_s);
      streams.Run(round_s);
    }
    EXPECT_LT(streams.Spread(), 1.05) << round_s;
    uint64_t moved = 0;
    for (int i = 0; i < 100; ++i) {
      moved += streams.Round(round_s);
      streams.Run(round_s);
    }
    EXPECT_LT(moved, kQuota / 200) << "no oscillation, rounds of " << round_s;
  }
}

// Where requests go round more than one part of even size holds, a part that swings below what its
// server is asked for hits nothing.
TEST(NextPartsTest, ShortRoundsMoveNoMoreThanAnAgeCanShow) {
  const std::vector servers = {Full(1000, seconds(1000)), Full(1000, seconds(1100))};
  EXPECT_GE(NextParts(2000, kLong, servers)[0], 1005U);
  const uint64_t part = NextParts(2000, seconds(1), servers)[0];
  EXPECT_LE(part, 1001U);
  EXPECT_EQ(NextParts(2000, Duration::zero(), servers)[0], 1000U);
}

TEST(NextPartsTest, EvenLoadsStayPut) {
  Streams streams({9000, 9000, 9000});
  streams.Run(10'000);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(streams.Round(1), 0U);
    streams.Run(1);
  }
}

// More skew than parts may follow.
TEST(NextPartsTest, AnIdleServerKeepsHalf) {
  Streams streams({1, 20'000, 20'000});
  streams.Run(10'000);
  for (int i = 0; i < 500; ++i) {
    (void)streams.Round(1);
    streams.Run(1);
  }
  EXPECT_NEAR(static_cast<double>(streams.servers()[0].part_bytes), kQuota / 6.0, 10);
  EXPECT_NEAR(static_cast<double>(streams.servers()[1].part_bytes), kQuota * 5 / 12.0,
              kQuota / 50.0);
}

// Servers that hold what they are told when they hear it, and report at their next heartbeat.
class QuotaPartsTest : public ::testing::Test {
 protected:
  struct Server {
    uint64_t part_bytes = 0;
    Duration age = seconds(100);
    uint64_t dram_bytes = kQuota;
    bool reports = true;
  };

  QuotaPartsTest() { SetQuota(kQuota); }
  void SetQuota(uint64_t bytes) {
    NamespaceInfo info;
    info.ref = kRef;
    info.name = "kv";
    info.dram_quota_bytes = quota_ = bytes;
    registry_ = NamespaceRegistry({info}, ++table_, 2);
  }
  // All slots are shared equally, and servers hold what their slots give them.
  void Publish(const std::vector<uint32_t>& ids) {
    std::vector<NodeInfo> nodes;
    SlotTable slots;
    for (const uint32_t id : ids) nodes.emplace_back().id = NodeId(id);
    for (uint16_t i = 0; i < kSlotCount; ++i)
      slots.set_owner(SlotId(i), NodeId(ids[i % ids.size()]));
    view_ = *DhtView::Make({1, ++epoch_}, nodes, slots, false);
    std::erase_if(servers_,
                  [&](const auto& one) { return view_->Find(NodeId(one.first)) == nullptr; });
    for (const uint32_t id : ids) servers_[id].part_bytes = EvenOf(id);
  }
  uint64_t EvenOf(uint32_t id) const {
    return quota_ * view_->slots().CountOf(NodeId(id)) / kSlotCount;
  }
  std::vector<QuotaPart> Say(uint32_t id, ViewVersion installed) {
    const Server& server = servers_.at(id);
    NodeUsage usage;
    usage.dram_total_bytes = server.dram_bytes;
    if (server.reports)
      usage.quota_parts.push_back({kRef, quota_, server.part_bytes, server.part_bytes, server.age});
    return parts_.OnHeartbeat(NodeId(id), installed, usage, *view_, registry_, now_);
  }
  // `heard`: the answer arrives.
  void Beat(uint32_t id, bool heard = true) {
    for (const QuotaPart& told : Say(id, view_->version())) {
      EXPECT_EQ(told.ref, kRef);
      EXPECT_EQ(told.quota_bytes, quota_);
      if (heard) servers_.at(id).part_bytes = told.part_bytes;
    }
    EXPECT_LE(Held(), quota_);
  }
  void BeatAll(int times) {
    for (int i = 0; i < times; ++i) {
      now_ += seconds(1);
      for (const auto& [id, server] : servers_) Beat(id);
    }
  }
  // Ages are equal from now on.
  void EndRound() {
    for (auto& [id, server] : servers_) server.age = seconds(100);
    BeatAll(5);
  }
  uint64_t Held() const {
    uint64_t sum = 0;
    for (const auto& [id, server] : servers_) sum += server.part_bytes;
    return sum;
  }
  uint64_t PartOf(uint32_t id) const { return servers_.at(id).part_bytes; }

  NamespaceRegistry registry_;
  std::shared_ptr<const DhtView> view_;
  std::map<uint32_t, Server> servers_;
  QuotaParts parts_;
  uint64_t quota_ = 0, table_ = 0, epoch_ = 0;
  TimePoint now_{seconds(100)};
};

TEST_F(QuotaPartsTest, BytesMoveToWhoEvictsYounger) {
  Publish({1, 2, 3});
  servers_[1].age = seconds(20);
  BeatAll(20);
  EXPECT_GT(PartOf(1), EvenOf(1) * 11 / 10);
  EXPECT_LT(PartOf(2), EvenOf(2));
  EndRound();
  EXPECT_NEAR(static_cast<double>(Held()), kQuota, 10);
}

TEST_F(QuotaPartsTest, EqualAgesMoveNothing) {
  Publish({1, 2, 3});
  BeatAll(20);
  for (const uint32_t id : {1U, 2U, 3U}) EXPECT_EQ(PartOf(id), EvenOf(id));
}

// Beat checks that the quota is kept all the while.
TEST_F(QuotaPartsTest, WhoGetsMoreIsToldWhenOthersHoldLess) {
  Publish({1, 2, 3});
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const auto id = static_cast<uint32_t>(1 + random() % 3);
    servers_[id].age = seconds(1 + random() % 100);
    now_ += seconds(1);
    Beat(id, random() % 3 > 0);
  }
}

TEST_F(QuotaPartsTest, AServerThatReportsNoneKeepsItsPart) {
  Publish({1, 2, 3});
  servers_[3].reports = false;
  servers_[1].age = seconds(20);
  BeatAll(50);
  EndRound();
  EXPECT_EQ(PartOf(3), EvenOf(3));
  EXPECT_GT(PartOf(1), EvenOf(1));
  EXPECT_NEAR(static_cast<double>(PartOf(1) + PartOf(2)),
              static_cast<double>(EvenOf(1) + EvenOf(2)), 10);
}

TEST_F(QuotaPartsTest, NothingMovesBeforeAllAreHeard) {
  Publish({1, 2, 3});
  servers_[1].age = seconds(20);
  for (int i = 0; i < 10; ++i) {
    Beat(1);
    Beat(2);
  }
  EXPECT_EQ(PartOf(1), EvenOf(1));
}

TEST_F(QuotaPartsTest, APartIsNeverAboveTheMemoryOfTheServer) {
  Publish({1, 2, 3});
  servers_[1].age = seconds(1);
  servers_[1].dram_bytes = EvenOf(1) + 1000;
  BeatAll(50);
  EXPECT_EQ(PartOf(1), EvenOf(1) + 1000);
}

TEST_F(QuotaPartsTest, APartIsNeverBelowTheReservation) {
  NamespaceInfo info = *registry_.Get("kv");
  info.dram_reserved_bytes = kQuota * 9 / 10;
  registry_ = NamespaceRegistry({info}, ++table_, 2);
  Publish({1, 2, 3});
  servers_[1].age = seconds(1);
  BeatAll(50);
  EXPECT_GT(PartOf(1), EvenOf(1));
  EXPECT_NEAR(static_cast<double>(PartOf(2)), static_cast<double>(EvenOf(2)) * 9 / 10, 2);
}

TEST_F(QuotaPartsTest, ServersLeaveAndJoin) {
  Publish({1, 2, 3});
  servers_[1].age = seconds(20);
  BeatAll(50);
  Publish({1, 2});
  BeatAll(50);
  EXPECT_GT(PartOf(1), EvenOf(1));
  Publish({1, 2, 4});
  EXPECT_TRUE(Say(1, {1, epoch_ - 1}).empty()) << "it has not installed the view yet";
  BeatAll(50);
  EXPECT_GT(PartOf(1), EvenOf(1));
  EXPECT_LT(PartOf(4), EvenOf(4));
}

// A controller that has restarted knows nothing, and servers hold what they were told before.
TEST_F(QuotaPartsTest, ARestartGoesOnFromWhatServersHold) {
  Publish({1, 2, 3});
  servers_[1].age = seconds(20);
  BeatAll(30);
  EndRound();
  const uint64_t before = PartOf(1);
  ASSERT_GT(before, EvenOf(1));
  parts_ = QuotaParts();
  BeatAll(10);
  EXPECT_EQ(PartOf(1), before);
}

// Views change and one server's slots do not: it holds what it held, the others their even parts.
TEST_F(QuotaPartsTest, ServersThatHoldTooMuchComeToEvenParts) {
  Publish({1, 2, 3});
  servers_[1].part_bytes = EvenOf(1) * 3 / 2;
  for (int i = 0; i < 3; ++i)
    for (const uint32_t id : {1U, 2U, 3U})
      for (const QuotaPart& told : Say(id, view_->version()))
        servers_[id].part_bytes = told.part_bytes;
  EXPECT_LE(Held(), kQuota);
  EXPECT_EQ(PartOf(1), EvenOf(1));
}

TEST_F(QuotaPartsTest, PartsOfAnotherQuotaOrGenerationCountForNothing) {
  Publish({1, 2});
  servers_[1].age = seconds(20);
  BeatAll(3);
  const std::vector<QuotaPart> others = {{{kRef.id, 8}, kQuota, 1, 1, seconds(1)},
                                         {{NamespaceId(2), 1}, kQuota, 1, 1, seconds(1)},
                                         {kRef, kQuota - 1, 1, 1, seconds(1)}};
  NodeUsage usage;
  usage.quota_parts = others;
  EXPECT_TRUE(
      parts_.OnHeartbeat(NodeId(1), view_->version(), usage, *view_, registry_, now_).empty());
  SetQuota(kQuota / 2);
  Publish({1, 2});
  BeatAll(50);
  EXPECT_GT(PartOf(1), EvenOf(1));
}

}  // namespace
}  // namespace ems::controller
