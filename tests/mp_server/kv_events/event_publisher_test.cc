#include "mp_server/kv_events/event_publisher.h"

#include <gmock/gmock.h>

#include <set>

#include "common/guarded.h"
#include "tests/mp_server/kv_events/zmq_peer.h"
#include "tests/support/eventually.h"

namespace ems::kv_events {
namespace {

struct Batch {
  uint64_t sequence = 0;
  std::string payload;
};

// What is present, as the indexes say it: changed and pushed together.
class FakeBlocks {
 public:
  void Set(uint64_t number, bool stored) {
    auto blocks = blocks_.Lock();
    stored ? (void)blocks->insert(number) : (void)blocks->erase(number);
    events_.Push({Hash128{number, 0}, Medium::kDram, stored});
  }
  // Without telling, as what is found at the start.
  void Find(uint64_t number) {
    auto blocks = blocks_.Lock();
    blocks->insert(number);
  }

  // One block a step.
  bool List(ListCursor* cursor, std::vector<BlockEvent>* out) {
    auto blocks = blocks_.Lock();
    const auto it = blocks->lower_bound(cursor->place);
    if (it == blocks->end()) return false;
    out->push_back({Hash128{*it, 0}, Medium::kDram, true});
    cursor->place = *it + 1;
    return true;
  }
  BlockEvents* events() { return &events_; }

 private:
  BlockEvents events_{size_t{1} << 17};  // all that a test pushes
  Guarded<std::set<uint64_t>> blocks_;
};

// Blocks are told by number, so a payload is known by how often a number's bytes are in it.
bool Has(const std::string& payload, uint64_t number) {
  return payload.find("\xc4\x10" + std::string(8, '\0') + BigEndian(number)) != std::string::npos;
}
bool Clears(const std::string& payload) {
  return payload.find("AllBlocksCleared") != std::string::npos;
}

class EventPublisherTest : public ::testing::Test {
 protected:
  EventPublisherTest() {
    options_.sockets = {"127.0.0.1:0", "127.0.0.1:0", 1000};
    options_.topic = "kv";
    options_.events = blocks_.events();
    options_.batch_every = std::chrono::milliseconds(1);
    options_.heartbeat_every = std::chrono::milliseconds(10);
    options_.list = [this](ListCursor* cursor, std::vector<BlockEvent>* out) {
      return blocks_.List(cursor, out);
    };
    options_.metrics = {registry_.AddCounter("events", ""),  registry_.AddCounter("batches", ""),
                        registry_.AddCounter("lost", ""),    registry_.AddCounter("gaps", ""),
                        registry_.AddCounter("replays", ""), registry_.AddCounter("states", ""),
                        registry_.AddCounter("refused", ""), registry_.AddCounter("foreign", ""),
                        registry_.AddCounter("given_up", "")};
  }
  void Start() {
    auto started = EventPublisher::Start(options_);
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    publisher_ = *std::move(started);
  }
  // All of an answer but its end.
  std::vector<Batch> Ask(uint64_t start) {
    ZmqPeer dealer(ZMQ_DEALER, publisher_->replay_address());
    dealer.Send({BigEndian(start)});
    std::vector<Batch> batches;
    while (true) {
      const auto frames = dealer.Receive();
      if (frames.size() != 2) {
        ADD_FAILURE() << "no answer";
        return batches;
      }
      if (Number(frames[0]) == kEndOfAnswer) {
        EXPECT_EQ(frames[1], "");
        return batches;
      }
      batches.push_back({Number(frames[0]), frames[1]});
    }
  }
  Batch Next(ZmqPeer* subscriber) {
    const auto frames = subscriber->Receive();
    EXPECT_EQ(frames.size(), 3u);
    if (frames.size() != 3) return {};
    EXPECT_EQ(frames[0], "kv");
    return {Number(frames[1]), frames[2]};
  }
  // The first batch that says something of the block; those before it are skipped.
  Batch Until(ZmqPeer* subscriber, uint64_t number) {
    for (int i = 0; i < 1000; ++i) {
      const Batch batch = Next(subscriber);
      if (Has(batch.payload, number) || batch.payload.empty()) return batch;
    }
    ADD_FAILURE() << "nothing of " << number;
    return {};
  }

  MetricsRegistry registry_;
  FakeBlocks blocks_;
  EventPublisher::Options options_;
  std::unique_ptr<EventPublisher> publisher_;
};

TEST_F(EventPublisherTest, BatchesFollowEachOtherAndHeartbeatsShowTheLast) {
  Start();
  ZmqPeer subscriber(ZMQ_SUB, publisher_->address());
  uint64_t last = Next(&subscriber).sequence;  // a heartbeat: it hears us
  EXPECT_GT(last, 1'600'000'000'000'000u);     // of the clock
  blocks_.Set(7, true);
  bool seen = false;
  for (int i = 0; i < 10 || !seen; ++i) {
    const Batch batch = Next(&subscriber);
    ASSERT_EQ(batch.sequence, last + 1);
    last = batch.sequence;
    seen = seen || Has(batch.payload, 7);
  }
}

TEST_F(EventPublisherTest, TheFirstBatchClearsAndWhatIsHereIsReplayed) {
  options_.heartbeat_every = Duration::zero();
  Start();
  const std::vector<Batch> first = Ask(0);  // older than anything: the state, which is empty
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(Clears(first[0].payload));
  blocks_.Set(1, true);
  const std::vector<Batch> later = Ask(first[0].sequence + 1);
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0].sequence, first[0].sequence + 1);
  EXPECT_TRUE(Has(later[0].payload, 1));
  EXPECT_FALSE(Clears(later[0].payload));
  const std::vector<Batch> all = Ask(first[0].sequence);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(Clears(all[0].payload));
  EXPECT_TRUE(Ask(later[0].sequence + 1).empty());  // nothing since
  EXPECT_EQ(options_.metrics.replays.value(), 3);
  EXPECT_EQ(options_.metrics.states.value(), 1);
}

TEST_F(EventPublisherTest, WhatIsNotHereAnyMoreIsAnsweredWithThePresentState) {
  options_.replay_batches = 2;
  options_.heartbeat_every = Duration::zero();
  Start();
  const uint64_t cleared = Ask(0)[0].sequence;
  for (uint64_t i = 0; i < 5; ++i) {
    blocks_.Set(10 + i, true);
    blocks_.Set(20 + i, true);
    blocks_.Set(20 + i, false);
    Ask(kStateNow - 1);  // a batch of its own
  }
  for (const uint64_t start : {cleared, cleared + 1, uint64_t{0}, kStateNow, cleared + 1000}) {
    const std::vector<Batch> state = Ask(start);
    ASSERT_FALSE(state.empty());
    EXPECT_TRUE(Clears(state[0].payload)) << start;
    std::string all;
    for (const Batch& batch : state) all += batch.payload;
    for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(Has(all, 10 + i)) << start;
  }
}

TEST_F(EventPublisherTest, WhatWasLostShowsAsAGapAndTheGapIsAnsweredWithTheState) {
  Start();
  ZmqPeer subscriber(ZMQ_SUB, publisher_->address());
  uint64_t last = Next(&subscriber).sequence;
  blocks_.Find(5);
  blocks_.events()->Lose();
  uint64_t missed = 0;
  while (missed == 0) {
    const Batch batch = Next(&subscriber);
    ASSERT_GT(batch.sequence, last);
    if (batch.sequence != last + 1) {
      EXPECT_EQ(batch.sequence, last + 2);
      missed = last + 1;
    }
    last = batch.sequence;
  }
  const std::vector<Batch> state = Ask(missed);
  ASSERT_FALSE(state.empty());
  EXPECT_TRUE(Clears(state[0].payload));
  EXPECT_TRUE(Has(state[0].payload, 5));
  EXPECT_GT(state[0].sequence, missed);
  EXPECT_EQ(options_.metrics.gaps.value(), 1);
  EXPECT_EQ(options_.metrics.lost.value(), 1);
}

TEST_F(EventPublisherTest, AnAnnouncementTellsWhatNobodyPushed) {
  Start();
  ZmqPeer subscriber(ZMQ_SUB, publisher_->address());
  Next(&subscriber);
  for (uint64_t i = 0; i < 3000; ++i) blocks_.Find(1000 + i);
  publisher_->Announce();
  EXPECT_TRUE(Has(Until(&subscriber, 1000).payload, 1000));
  EXPECT_TRUE(Has(Until(&subscriber, 3999).payload, 3999));
}

// Changes go on while many ask: a follower that applies state and later batches has the present
// state.
TEST_F(EventPublisherTest, AStateThatChangesMeanwhileComesOutRight) {
  Start();
  for (uint64_t i = 0; i < 500; ++i) blocks_.Set(i, true);
  Thread changes("changes", [&] {
    for (uint64_t i = 0; i < 50'000; ++i) blocks_.Set(i % 100, i / 100 % 2 == 1);
  });
  for (int i = 0; i < 5; ++i) {
    const std::vector<Batch> state = Ask(kStateNow);
    ASSERT_FALSE(state.empty());
    EXPECT_TRUE(Clears(state[0].payload));
    std::string all;
    for (const Batch& batch : state) all += batch.payload;
    for (uint64_t block = 100; block < 500; ++block) ASSERT_TRUE(Has(all, block));
  }
}

TEST_F(EventPublisherTest, MoreThanSoManyWhoAskAreTurnedAwayAtOnce) {
  std::atomic<bool> hold{true};
  options_.list = [&](ListCursor*, std::vector<BlockEvent>*) { return hold.load(); };
  Start();
  std::vector<std::unique_ptr<ZmqPeer>> waiting;
  for (size_t i = 0; i < EventPublisher::kAskersMax + 1; ++i) {
    waiting.push_back(std::make_unique<ZmqPeer>(ZMQ_DEALER, publisher_->replay_address()));
    waiting.back()->Send({BigEndian(kStateNow)});
  }
  ASSERT_TRUE(ems::testing::Eventually([&] { return options_.metrics.refused.value() >= 1; }));
  ZmqPeer one_more(ZMQ_DEALER, publisher_->replay_address());
  one_more.Send({BigEndian(kStateNow)});
  EXPECT_THAT(one_more.Receive(), ::testing::ElementsAre(BigEndian(kEndOfAnswer), ""));
  EXPECT_EQ(options_.metrics.refused.value(), 2);
  hold.store(false);
}

TEST_F(EventPublisherTest, ItEndsAtOnceWhateverPeersDo) {
  Start();
  ZmqPeer subscriber(ZMQ_SUB, publisher_->address());  // reads nothing
  ZmqPeer dealer(ZMQ_DEALER, publisher_->replay_address());
  dealer.Send({BigEndian(kStateNow)});
  dealer.Send({"foreign"});
  for (uint64_t i = 0; i < 100'000; ++i) blocks_.Set(i, true);
  publisher_.reset();
  const auto again = EventSockets::Open({"127.0.0.1:0", "", 1});
  EXPECT_TRUE(again.ok());
}

}  // namespace
}  // namespace ems::kv_events
