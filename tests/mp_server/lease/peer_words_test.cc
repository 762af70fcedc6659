// What must hold: no word ever gets younger, whatever way it came and whatever clocks it passed;
// and a majority of a thousand servers is known everywhere within the time for which words count,
// at a few messages a server.
#include "mp_server/lease/peer_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <utility>

namespace ems::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ViewVersion kVersion(3, 7);
constexpr TimePoint kStart{seconds(1000)};

// Servers 1 to `servers`, of boot ids 101 and so on.
std::shared_ptr<const DhtView> MakeView(uint32_t servers, ViewVersion version = kVersion) {
  std::vector<NodeInfo> nodes(servers);
  for (uint32_t i = 0; i < servers; ++i) {
    nodes[i].id = NodeId(i + 1);
    nodes[i].boot_id = 101 + i;
  }
  return *DhtView::Make(version, nodes, SlotTable(), false);
}

void Follow(PeerWords* words, const DhtView& view, uint32_t self = 1) {
  words->Follow(view, view.Fingerprint(), NodeId(self));
}

class PeerWordsTest : public ::testing::Test {
 protected:
  PeerWordsTest() { Follow(&words_, *view_); }
  // A table of this view with one word.
  wire::WordTable Relay(uint32_t node, uint64_t boot, uint32_t age_us) const {
    return {.view = kVersion,
            .fingerprint = view_->Fingerprint(),
            .words = {{.boot_id = boot, .node_id = node, .age_us = age_us}}};
  }
  void Hear(uint32_t from, TimePoint asked, const wire::WordTable& table) {
    words_.OnAnswer(NodeId(from), asked, ViewVersion(), table);
  }

  const std::shared_ptr<const DhtView> view_ = MakeView(5);
  PeerWords words_{1};
};

TEST_F(PeerWordsTest, AWordCountsFromWhenItWasAskedFor) {
  EXPECT_EQ(words_.SaidBy(1), std::nullopt);
  words_.OnAnswer(NodeId(2), kStart, kVersion, {});
  words_.OnAnswer(NodeId(3), kStart - milliseconds(3), kVersion, {});
  EXPECT_EQ(words_.SaidBy(1), kStart);
  EXPECT_EQ(words_.SaidBy(2), kStart - milliseconds(3)) << "the oldest of those needed";
  EXPECT_EQ(words_.SaidBy(3), std::nullopt);
  EXPECT_EQ(words_.SaidBy(99), std::nullopt);
  words_.OnAnswer(NodeId(2), kStart - seconds(1), kVersion, {});
  EXPECT_EQ(words_.SaidBy(1), kStart) << "news of long ago are no news";
}

TEST_F(PeerWordsTest, WhoHasAnotherViewOrSaysNothingGivesNoWord) {
  for (const ViewVersion other : {ViewVersion(), ViewVersion(3, 6), ViewVersion(3, 8)})
    words_.OnAnswer(NodeId(2), kStart, other, {});
  EXPECT_EQ(words_.SaidBy(1), std::nullopt);
}

// It is of the time before, and the controller waits for as long as it counts.
TEST_F(PeerWordsTest, ANewerViewOfAServerWithdrawsNothing) {
  words_.OnAnswer(NodeId(2), kStart, kVersion, {});
  words_.OnAnswer(NodeId(2), kStart + milliseconds(50), ViewVersion(3, 8), {});
  EXPECT_EQ(words_.SaidBy(1), kStart);
}

TEST_F(PeerWordsTest, ARelayedWordIsAsOldAsItWasBeforeTheQuestion) {
  Hear(2, kStart, Relay(3, 103, 40'000));
  EXPECT_EQ(words_.SaidBy(1), kStart - milliseconds(40));
  Hear(2, kStart + milliseconds(50), Relay(3, 103, 90'000));
  EXPECT_EQ(words_.SaidBy(1), kStart - milliseconds(40)) << "told again it is no younger";
  words_.OnAnswer(NodeId(3), kStart, kVersion, {});
  Hear(2, kStart, Relay(3, 103, 40'000));
  EXPECT_EQ(words_.SaidBy(1), kStart) << "what was heard later counts";
}

TEST_F(PeerWordsTest, AgesAreRoundedUp) {
  words_.OnAnswer(NodeId(3), kStart, kVersion, {});
  const auto heard = words_.Heard(kStart);
  for (const auto passed :
       {Duration(0), Duration(1), Duration(999), Duration(1000), Duration(1001)}) {
    const wire::WordTable told = heard->Tell(kStart + passed);
    ASSERT_EQ(told.words.size(), 1U);
    const Duration age = microseconds(told.words[0].age_us);
    EXPECT_GE(age, passed);
    EXPECT_LT(age, passed + microseconds(1));
  }
}

TEST_F(PeerWordsTest, WhatCountsNoMoreIsNotTold) {
  words_.OnAnswer(NodeId(3), kStart, kVersion, {});
  const auto heard = words_.Heard(kStart);
  EXPECT_EQ(heard->Tell(kStart + kQuorumValid).words.size(), 1U);
  EXPECT_TRUE(heard->Tell(kStart + kQuorumValid + Duration(1)).words.empty());
  EXPECT_TRUE(words_.Heard(kStart + kQuorumValid + Duration(1))->words.empty());
}

TEST_F(PeerWordsTest, OnlyProcessesThatTheViewShowsCount) {
  Hear(2, kStart, Relay(3, 999, 0));
  Hear(2, kStart, Relay(77, 103, 0));
  Hear(2, kStart, Relay(1, 101, 0));
  EXPECT_EQ(words_.SaidBy(1), std::nullopt) << "another process, a stranger, this server itself";
  words_.OnAnswer(NodeId(77), kStart, kVersion, Relay(3, 103, 0));
  words_.OnSilence(NodeId(77), kStart);
  EXPECT_EQ(words_.SaidBy(1), std::nullopt) << "a stranger's answer";
}

TEST_F(PeerWordsTest, ATableOfAnotherViewIsPassedOver) {
  wire::WordTable table = Relay(3, 103, 0);
  table.view = ViewVersion(3, 6);
  Hear(2, kStart, table);
  table.view = kVersion;
  table.fingerprint += 1;
  Hear(2, kStart, table);
  EXPECT_EQ(words_.SaidBy(1), std::nullopt) << "a view of the same number that says other things";
}

TEST_F(PeerWordsTest, WordsOfAViewThatIsOverAreForgotten) {
  words_.OnAnswer(NodeId(2), kStart, kVersion, {});
  Follow(&words_, *view_);
  EXPECT_EQ(words_.SaidBy(1), kStart);
  Follow(&words_, *MakeView(5, ViewVersion(3, 8)));
  EXPECT_EQ(words_.SaidBy(1), std::nullopt);
  EXPECT_TRUE(words_.Heard(kStart)->words.empty());
}

// A peer's bytes may say anything.
TEST_F(PeerWordsTest, AHostileTableGivesNoWordBeyondItsQuestion) {
  wire::WordTable table = Relay(3, 103, UINT32_MAX);
  for (uint32_t i = 0; i < wire::kWordsMax; ++i) {
    const uint32_t id = (i * 2654435761U) % 7;  // in any order, again and again
    table.words.push_back({.boot_id = 100 + id, .node_id = id, .age_us = i * 1000});
  }
  Hear(2, kStart, table);
  EXPECT_EQ(words_.Heard(kStart)->words.size(), 4U) << "one entry for each other server";
  EXPECT_LE(*words_.SaidBy(1), kStart);
  PeerWords fresh(1);
  Follow(&fresh, *view_);
  fresh.OnAnswer(NodeId(2), kStart, ViewVersion(), Relay(3, 103, UINT32_MAX));
  fresh.OnAnswer(NodeId(2), kStart, ViewVersion(), Relay(4, 104, 1'000'001));
  EXPECT_EQ(fresh.SaidBy(1), std::nullopt) << "too old to count";
}

// Each holder's clock is slower than the controller's, as slow as clocks may be.
TEST(PeerWordsRelayTest, ManyHopsOverSlowClocksKeepWithinTheAllowance) {
  constexpr int kHops = 12;
  constexpr double kSlow = 1 - 1.0 / 50;
  const auto view = MakeView(kHops + 2);
  TimePoint now = kStart;               // the controller's
  const auto local = [&](int server) {  // no two show the same time
    const auto passed = static_cast<double>((now - kStart).count()) * kSlow;
    return kStart + seconds(100 * server) + Duration(static_cast<int64_t>(passed));
  };
  std::vector<PeerWords> words;
  for (int i = 0; i <= kHops; ++i) {
    words.emplace_back(static_cast<uint64_t>(i));
    Follow(&words.back(), *view, static_cast<uint32_t>(i + 1));
  }
  const NodeId last_node(kHops + 2);
  words[0].OnAnswer(last_node, local(0), kVersion, {});
  for (int i = 1; i <= kHops; ++i) {
    now += milliseconds(37);
    const TimePoint asked = local(i);
    now += milliseconds(3);
    const auto table = words[static_cast<size_t>(i) - 1].Heard(local(i - 1))->Tell(local(i - 1));
    now += milliseconds(3);
    words[static_cast<size_t>(i)].OnAnswer(NodeId(static_cast<uint32_t>(i)), asked, ViewVersion(),
                                           table);
  }
  ASSERT_TRUE(words.back().SaidBy(1).has_value());
  const Duration counts_for = *words.back().SaidBy(1) + kQuorumValid - local(kHops);
  ASSERT_GT(counts_for, Duration::zero());
  const auto until =
      now + Duration(static_cast<int64_t>(static_cast<double>(counts_for.count()) / kSlow));
  EXPECT_LE(until - kStart, kQuorumOver);
  EXPECT_GT(until - kStart, kQuorumValid - milliseconds(3 * kHops) - milliseconds(1));
}

TEST(PeerWordsChoiceTest, AllServersOfASmallViewAreAsked) {
  PeerWords words(1);
  Follow(&words, *MakeView(PeerWords::kAskAllMax), 3);
  const std::vector<NodeId> asked = words.Choose(kStart);
  const std::set<NodeId> all(asked.begin(), asked.end());
  EXPECT_EQ(asked.size(), PeerWords::kAskAllMax - 1);
  EXPECT_EQ(all.size(), asked.size());
  EXPECT_FALSE(all.contains(NodeId(3)));
  EXPECT_EQ(words.every(), PeerWords::kAskAllEvery);
}

TEST(PeerWordsChoiceTest, OfALargeViewFewAreAskedAndEachSomeDay) {
  constexpr uint32_t kServers = 100;
  PeerWords words(1);
  Follow(&words, *MakeView(kServers));
  EXPECT_EQ(words.every(), PeerWords::kGossipEvery);
  std::set<NodeId> asked;
  for (uint32_t round = 0; round < kServers; ++round) {
    const std::vector<NodeId> chosen = words.Choose(kStart);
    EXPECT_EQ(chosen.size(), PeerWords::kAsked);
    EXPECT_EQ(std::set<NodeId>(chosen.begin(), chosen.end()).size(), PeerWords::kAsked);
    asked.insert(chosen.begin(), chosen.end());
    // The same few always answer, so that they are known to live.
    for (uint32_t id = 2; id < 12; ++id) words.OnAnswer(NodeId(id), kStart, kVersion, {});
  }
  EXPECT_EQ(asked.size(), kServers - 1);
  EXPECT_FALSE(asked.contains(NodeId(1)));
}

TEST(PeerWordsChoiceTest, WhoIsKnownToLiveIsPreferred) {
  PeerWords words(1);
  Follow(&words, *MakeView(1000));
  const std::set<NodeId> living = {NodeId(10), NodeId(20), NodeId(30), NodeId(40)};
  for (const NodeId id : living) words.OnAnswer(id, kStart, kVersion, {});
  const std::vector<NodeId> chosen = words.Choose(kStart);
  EXPECT_GE(std::ranges::count_if(chosen, [&](NodeId id) { return living.contains(id); }), 3);
  const TimePoint later = kStart + kQuorumValid + milliseconds(1);
  const std::vector<NodeId> any = words.Choose(later);
  EXPECT_EQ(any.size(), PeerWords::kAsked) << "also when nobody is";
}

TEST(PeerWordsChoiceTest, TheSilentAreAskedLessAndLessOftenButNeverGivenUp) {
  PeerWords words(1);
  Follow(&words, *MakeView(1000));
  TimePoint now = kStart;
  Duration longest{};
  const NodeId dead = words.Choose(now).front();
  for (int times = 0; times < 12; ++times) {
    words.OnSilence(dead, now);
    const TimePoint silent = now;
    const auto may_be_asked = [&] {  // all others are silent too
      for (uint32_t id = 2; id <= 1000; ++id)
        if (NodeId(id) != dead) words.OnSilence(NodeId(id), now);
      return !words.Choose(now).empty();
    };
    while (!may_be_asked()) now += milliseconds(250);
    EXPECT_GE(now - silent, std::min<Duration>(longest, seconds(10)));
    longest = std::max<Duration>(longest, now - silent);
    EXPECT_LE(longest, seconds(10) + milliseconds(250));
  }
  EXPECT_GE(longest, seconds(9));
  words.OnAnswer(dead, now, ViewVersion(), {});
  words.OnSilence(dead, now);
  now += milliseconds(250);
  EXPECT_FALSE(words.Choose(now).empty()) << "an answer ends that";
}

// In a small view the silent cost little: they are asked in about every round.
TEST(PeerWordsChoiceTest, TheSilentOfASmallViewAreBackSoon) {
  PeerWords words(1);
  Follow(&words, *MakeView(4));
  for (int times = 0; times < 9; ++times)
    for (uint32_t id = 2; id <= 4; ++id) words.OnSilence(NodeId(id), kStart);
  EXPECT_EQ(words.Choose(kStart + PeerWords::kAskAllEvery).size(), 3U);
}

// Servers in virtual time. A question to a dead one takes all of the patience.
class Crowd {
 public:
  struct Numbers {
    size_t live = 0;
    Duration age_most{};        // of a majority, once known, at the end of a round
    Duration first_most{};      // from a server's first question to its first majority
    double asked_a_second = 0;  // by a server
    size_t told_most = 0;       // words in one answer
  };
  Crowd(uint32_t servers, uint32_t dead_in_ten) : view_(MakeView(servers)), members_(servers) {
    for (uint32_t i = 0; i < servers; ++i) {
      members_[i].words = std::make_unique<PeerWords>(i);
      Follow(members_[i].words.get(), *view_, i + 1);
      // All lose the controller within the second of a heartbeat.
      if (i % 10 >= dead_in_ten)
        At(kStart + milliseconds((i * 7919) % 1000), [this, i] { Begin(i); });
      numbers_.live += i % 10 >= dead_in_ten ? 1 : 0;
      members_[i].live = i % 10 >= dead_in_ten;
    }
  }
  Numbers Run(Duration time) {
    while (!events_.empty() && events_.begin()->first < kStart + time) {
      now_ = events_.begin()->first;
      const std::function<void()> run = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      run();
    }
    numbers_.asked_a_second = static_cast<double>(asked_) / static_cast<double>(numbers_.live) /
                              std::chrono::duration<double>(time).count();
    return numbers_;
  }
  size_t WithMajority() const {
    return static_cast<size_t>(std::ranges::count_if(
        members_, [](const Member& one) { return one.live && one.has_majority; }));
  }

 private:
  static constexpr Duration kOneWay = microseconds(500);
  static constexpr Duration kPatience = milliseconds(100);
  struct Member {
    std::unique_ptr<PeerWords> words;
    bool live = false, has_majority = false;
    std::optional<TimePoint> began;
    std::shared_ptr<const HeardWords> heard;
  };
  void At(TimePoint when, std::function<void()> run) { events_.emplace(when, std::move(run)); }
  void Begin(uint32_t me) {
    Member& member = members_[me];
    if (!member.began) member.began = now_;
    const std::vector<NodeId> peers = member.words->Choose(now_);
    asked_ += peers.size();
    At(now_ + kOneWay, [this, me, peers, asked = now_] { Answer(me, peers, asked); });
  }
  void Answer(uint32_t me, const std::vector<NodeId>& peers, TimePoint asked) {
    auto tables = std::make_shared<std::vector<wire::WordTable>>();
    bool silent = false;
    for (const NodeId peer : peers) {
      const Member& one = members_[peer.value() - 1];
      tables->push_back(one.heard == nullptr ? wire::WordTable() : one.heard->Tell(now_));
      numbers_.told_most = std::max(numbers_.told_most, tables->back().words.size());
      silent |= !one.live;
    }
    At(silent ? asked + kPatience : now_ + kOneWay,
       [this, me, peers, tables, asked] { End(me, peers, *tables, asked); });
  }
  void End(uint32_t me, const std::vector<NodeId>& peers,
           const std::vector<wire::WordTable>& tables, TimePoint asked) {
    Member& member = members_[me];
    for (size_t i = 0; i < peers.size(); ++i) {
      if (members_[peers[i].value() - 1].live) {
        member.words->OnAnswer(peers[i], asked, kVersion, tables[i]);
      } else {
        member.words->OnSilence(peers[i], asked);
      }
    }
    member.heard = member.words->Heard(now_);
    const auto said = member.words->SaidBy(members_.size() / 2);
    const bool has = said.has_value() && *said + kQuorumValid > now_;
    if (has && !member.has_majority)
      numbers_.first_most = std::max(numbers_.first_most, now_ - *member.began);
    if (member.has_majority && said) numbers_.age_most = std::max(numbers_.age_most, now_ - *said);
    member.has_majority |= has;
    At(now_ + member.words->every(), [this, me] { Begin(me); });
  }

  const std::shared_ptr<const DhtView> view_;
  std::vector<Member> members_;
  std::multimap<TimePoint, std::function<void()>> events_;
  TimePoint now_ = kStart;
  size_t asked_ = 0;
  Numbers numbers_;
};

void Record(const Crowd::Numbers& numbers) {
  const auto us = [](Duration time) { return static_cast<int>(time / microseconds(1)); };
  ::testing::Test::RecordProperty("age_most_us", us(numbers.age_most));
  ::testing::Test::RecordProperty("first_majority_us", us(numbers.first_most));
  ::testing::Test::RecordProperty("asked_a_second", static_cast<int>(numbers.asked_a_second));
  ::testing::Test::RecordProperty("words_told_most", static_cast<int>(numbers.told_most));
}

TEST(PeerWordsCrowdTest, AThousandServersKnowAMajorityForAFewMessagesEach) {
  Crowd crowd(1000, 0);
  const Crowd::Numbers numbers = crowd.Run(milliseconds(1300));
  EXPECT_EQ(crowd.WithMajority(), numbers.live);
  EXPECT_LT(numbers.age_most, kQuorumValid / 2) << "so a renewal is seldom late";
  EXPECT_LT(numbers.first_most, kQuorumValid);
  EXPECT_LE(numbers.asked_a_second, 80) << "four in 50 ms";
  EXPECT_LE(numbers.told_most, 999U);
  Record(numbers);
}

TEST(PeerWordsCrowdTest, FourInTenMayBeDead) {
  Crowd crowd(1000, 4);
  const Crowd::Numbers numbers = crowd.Run(milliseconds(2000));
  EXPECT_EQ(crowd.WithMajority(), 600U);
  EXPECT_LT(numbers.age_most, kQuorumValid * 4 / 5);
  EXPECT_LE(numbers.asked_a_second, 80);
  Record(numbers);
}

TEST(PeerWordsCrowdTest, WithoutAMajorityNobodyHasOne) {
  Crowd crowd(100, 5);
  EXPECT_EQ(crowd.Run(seconds(3)).live, 50U);
  EXPECT_EQ(crowd.WithMajority(), 0U) << "50 of 100 is half";
}

}  // namespace
}  // namespace ems::server
