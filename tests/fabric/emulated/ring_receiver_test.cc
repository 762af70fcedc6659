// What must hold: a message finds its receive by event id, in any order of chunks; what no sender
// writes is found out before it is used and ends the ring with kDataLoss; an abandoned message
// takes no room; a peer that goes ends every wait.
#include "fabric/emulated/ring_receiver.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/hash.h"
#include "tests/support/raw_ring.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::RawChunk;
using testing::RawRingSender;

constexpr uint64_t kEntry = 4096;
constexpr Duration kLong = seconds(20);

MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

// A receiver, and the other end of its ring in the test's hands.
struct Rig {
  std::unique_ptr<RingReceiver> receiver;
  std::unique_ptr<RawRingSender> sender;
};

Rig MakeRig(bool checksums = false) {
  auto sockets = MakeSocketPair();
  auto receiver = RingReceiver::Offer(
      std::move(sockets->one), {.entries = 4, .entry_bytes = kEntry, .checksums = checksums});
  EXPECT_TRUE(receiver.ok()) << receiver.status();
  return {*std::move(receiver), std::make_unique<RawRingSender>(std::move(sockets->other))};
}

RawChunk LastChunk(uint32_t entry, uint64_t event_id, uint64_t tail, uint32_t bytes = 10) {
  return {.entry = entry,
          .event_id = event_id,
          .message = static_cast<uint32_t>(event_id),
          .chunk_id = kRingLastChunk,
          .bytes = bytes,
          .tail = tail};
}

TEST(RingReceiverTest, ChunksComeInAnyOrder) {
  Rig rig = MakeRig();
  std::string into(2 * kEntry + 100, '.');
  auto posted = rig.receiver->Post(7, Room(&into));
  ASSERT_TRUE(posted.ok());
  rig.sender->Fill(0, 'c');
  rig.sender->Fill(1, 'b');
  rig.sender->Fill(3, 'a');
  rig.sender->Store(
      {.entry = 0, .event_id = 7, .chunk_id = 2 | kRingLastChunk, .bytes = 100, .tail = 1});
  rig.sender->Store({.entry = 1, .event_id = 7, .chunk_id = 1, .bytes = kEntry, .tail = 2});
  EXPECT_FALSE((*posted)->done());
  rig.sender->Store({.entry = 3, .event_id = 7, .chunk_id = 0, .bytes = kEntry, .tail = 3});
  const auto got = (*posted)->Wait(kLong);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, into.size());
  EXPECT_EQ(into, std::string(kEntry, 'a') + std::string(kEntry, 'b') + std::string(100, 'c'));
  EXPECT_EQ(rig.sender->Ack(0), RingAckWord(1, RingAck::kTaken));
  EXPECT_EQ(rig.sender->Ack(3), RingAckWord(3, RingAck::kTaken));
}

TEST(RingReceiverTest, WhatNobodyWaitsForStaysInItsEntry) {
  Rig rig = MakeRig();
  rig.sender->Fill(0, 'x');
  rig.sender->Fill(1, 'y');
  rig.sender->Store(LastChunk(0, 1, 1));
  rig.sender->Store(LastChunk(1, 2, 2));
  std::string into(10, '.');
  EXPECT_EQ(*rig.receiver->Receive(2, Room(&into), kLong), 10U);
  EXPECT_EQ(into, "yyyyyyyyyy");
  EXPECT_EQ(rig.sender->Ack(0), 0U) << "the sender feels it";
  EXPECT_EQ(*rig.receiver->Receive(1, Room(&into), kLong), 10U);
  EXPECT_EQ(into, "xxxxxxxxxx");
}

TEST(RingReceiverTest, AnEventIdIsReceivedOnceAtATime) {
  Rig rig = MakeRig();
  std::string into(10, '.');
  auto posted = rig.receiver->Post(1, Room(&into));
  EXPECT_EQ(rig.receiver->Post(1, Room(&into)).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ((*posted)->Wait(milliseconds(1)).status().code(), StatusCode::kDeadlineExceeded);
  rig.sender->Store(LastChunk(0, 1, 1));
  EXPECT_TRUE((*posted)->Wait(kLong).ok()) << "it may be waited for again";
  EXPECT_TRUE(rig.receiver->Post(1, Room(&into)).ok()) << "and used again";
}

TEST(RingReceiverTest, TwoMessagesOfOneIdAreTakenOneAfterTheOther) {
  Rig rig = MakeRig();
  rig.sender->Fill(0, 'a');
  rig.sender->Fill(1, 'b');
  RawChunk first = LastChunk(0, 5, 1), second = LastChunk(1, 5, 2);
  first.message = 1;
  second.message = 2;
  rig.sender->Store(first);
  rig.sender->Store(second);
  std::string into(10, '.');
  EXPECT_TRUE(rig.receiver->Receive(5, Room(&into), kLong).ok());
  EXPECT_EQ(into[0], 'a');
  EXPECT_TRUE(rig.receiver->Receive(5, Room(&into), kLong).ok());
  EXPECT_EQ(into[0], 'b');
}

TEST(RingReceiverTest, AMessageThatIsTooLargeFailsAloneAndItsRestIsDropped) {
  Rig rig = MakeRig();
  std::string small(kEntry, '.');
  auto posted = rig.receiver->Post(1, Room(&small));
  rig.sender->Store(
      {.entry = 0, .event_id = 1, .chunk_id = 1 | kRingLastChunk, .bytes = 1, .tail = 1});
  EXPECT_EQ((*posted)->Wait(kLong).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(rig.sender->Ack(0), RingAckWord(1, RingAck::kTooLarge));
  rig.sender->Store({.entry = 1, .event_id = 1, .chunk_id = 0, .bytes = kEntry, .tail = 2});
  rig.sender->Store(LastChunk(2, 2, 3));
  EXPECT_TRUE(rig.receiver->Receive(2, Room(&small), kLong).ok());
  EXPECT_EQ(rig.sender->Ack(1), RingAckWord(2, RingAck::kTooLarge));
}

TEST(RingReceiverTest, WhatWasGivenUpTakesNoRoom) {
  Rig rig = MakeRig();
  std::string into(2 * kEntry, '.');
  rig.sender->Store({.entry = 0, .event_id = 1, .chunk_id = 0, .bytes = kEntry, .tail = 1});
  EXPECT_EQ(rig.receiver->Receive(1, Room(&into), milliseconds(5)).status().code(),
            StatusCode::kDeadlineExceeded);
  rig.sender->Store(
      {.entry = 1, .event_id = 1, .chunk_id = 1 | kRingLastChunk, .bytes = 9, .tail = 2});
  rig.sender->Store(LastChunk(2, 2, 3));
  EXPECT_TRUE(rig.receiver->Receive(2, Room(&into), kLong).ok());
  EXPECT_EQ(rig.sender->Ack(1), RingAckWord(2, RingAck::kGivenUp));
}

TEST(RingReceiverTest, ACancelEndsTheReceiveAndFreesTheEntries) {
  Rig rig = MakeRig();
  std::string into(2 * kEntry, '.');
  // Message 1 nobody waits for; of message 2 a part has been taken.
  rig.sender->Store({.entry = 0, .event_id = 1, .chunk_id = 0, .bytes = kEntry, .tail = 1});
  auto posted = rig.receiver->Post(2, Room(&into));
  rig.sender->Store(
      {.entry = 1, .event_id = 2, .message = 2, .chunk_id = 0, .bytes = kEntry, .tail = 2});
  EXPECT_FALSE((*posted)->done());
  rig.sender->Store({.entry = 4, .event_id = 1, .chunk_id = kRingCancel, .tail = 3});
  EXPECT_FALSE((*posted)->done());
  EXPECT_EQ(rig.sender->Ack(0), RingAckWord(1, RingAck::kGivenUp));
  EXPECT_EQ(rig.sender->Ack(4), RingAckWord(3, RingAck::kTaken));
  rig.sender->Store({.entry = 4, .event_id = 2, .message = 2, .chunk_id = kRingCancel, .tail = 4});
  EXPECT_EQ((*posted)->Wait(kLong).status().code(), StatusCode::kDeadlineExceeded);
}

TEST(RingReceiverTest, WhatWasGivenUpLeavesItsEntriesWithoutAnybodyWhoWaits) {
  Rig rig = MakeRig();
  rig.sender->Store({.entry = 0, .event_id = 1, .chunk_id = 0, .bytes = kEntry, .tail = 1});
  rig.sender->Store({.entry = 4, .event_id = 1, .chunk_id = kRingCancel, .tail = 2});
  rig.receiver->TakeIn();
  EXPECT_EQ(rig.sender->Ack(0), RingAckWord(1, RingAck::kGivenUp));
  EXPECT_EQ(rig.sender->Ack(4), RingAckWord(2, RingAck::kTaken));
}

TEST(RingReceiverTest, ACorruptChunkFailsItsMessageAlone) {
  Rig rig = MakeRig(true);
  EXPECT_EQ(rig.sender->hello().checksums, 1U);
  rig.sender->Fill(0, 'a');
  rig.sender->Fill(1, 'b');
  const std::string text(10, 'b');
  RawChunk sound = LastChunk(1, 2, 2);
  sound.checksum = static_cast<uint32_t>(Hash64(AsBytes(text)));
  rig.sender->Store(LastChunk(0, 1, 1));
  rig.sender->Store(sound);
  std::string into(10, '.');
  EXPECT_EQ(rig.receiver->Receive(1, Room(&into), kLong).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(rig.sender->Ack(0), RingAckWord(1, RingAck::kCorrupt));
  EXPECT_TRUE(rig.receiver->Receive(2, Room(&into), kLong).ok());
  EXPECT_EQ(into, text);
}

struct Garbage {
  const char* what;
  std::vector<RawChunk> chunks;
};

TEST(RingReceiverTest, WhatNoSenderWritesEndsTheRing) {
  const RawChunk full{.entry = 0, .event_id = 1, .chunk_id = 0, .bytes = kEntry, .tail = 5};
  const auto with = [&](auto change) {
    RawChunk chunk = full;
    change(&chunk);
    return chunk;
  };
  const RawChunk second = with([](RawChunk* c) { c->entry = 1, c->tail = 6; });
  const std::vector<Garbage> all = {
      {"more bytes than an entry",
       {with([](RawChunk* c) { c->bytes = kEntry + 1, c->chunk_id = kRingLastChunk; })}},
      {"bytes beyond all memory",
       {with([](RawChunk* c) { c->bytes = ~0U, c->chunk_id = kRingLastChunk; })}},
      {"a short chunk in the middle", {with([](RawChunk* c) { c->bytes = kEntry - 1; })}},
      {"unknown flags", {with([](RawChunk* c) { c->chunk_id = 0x1000'0000; })}},
      {"a cancel in an entry", {with([](RawChunk* c) { c->chunk_id = kRingCancel; })}},
      {"a chunk in the field of cancels", {with([](RawChunk* c) { c->entry = 4; })}},
      {"a tail that leaves no room for the ack",
       {with([](RawChunk* c) { c->tail = uint64_t{1} << 56; })}},
      {"an entry used again before its ack",
       {with([](RawChunk* c) { c->event_id = 9, c->message = 9; }),
        with([](RawChunk* c) { c->event_id = 9, c->message = 9, c->chunk_id = 1, c->tail = 6; })}},
      {"a tail that goes back", {full, with([](RawChunk* c) { c->chunk_id = 1, c->tail = 4; })}},
      {"the same chunk twice", {full, second}},
      {"two events in a message", {full, with([](RawChunk* c) {
                                     c->entry = 1, c->event_id = 2, c->chunk_id = 1, c->tail = 6;
                                   })}},
      {"a chunk behind the last",
       {with([](RawChunk* c) { c->chunk_id = 1 | kRingLastChunk; }),
        with([](RawChunk* c) { c->entry = 1, c->chunk_id = 2, c->tail = 6; })}},
      {"two last chunks",
       {with([](RawChunk* c) { c->chunk_id = 2 | kRingLastChunk; }),
        with([](RawChunk* c) { c->entry = 1, c->chunk_id = 1 | kRingLastChunk, c->tail = 6; })}},
  };
  for (const Garbage& garbage : all) {
    SCOPED_TRACE(garbage.what);
    Rig rig = MakeRig();
    std::string into(3 * kEntry, '.'), other(10, '.');
    auto posted = rig.receiver->Post(1, Room(&into));
    auto bystander = rig.receiver->Post(77, Room(&other));
    ASSERT_TRUE(posted.ok() && bystander.ok());
    for (const RawChunk& chunk : garbage.chunks) {
      rig.sender->Store(chunk);
      (void)(*posted)->done();  // looks at each by itself
    }
    EXPECT_EQ((*posted)->Wait(kLong).status().code(), StatusCode::kDataLoss);
    EXPECT_EQ((*bystander)->Wait(kLong).status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(rig.receiver->Post(2, Room(&other)).status().code(), StatusCode::kDataLoss);
  }
}

TEST(RingReceiverTest, RandomFieldsNeverWriteBesideABuffer) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Rig rig = MakeRig(round % 2 == 0);
    std::string guarded(3 * kEntry + 20, '.');
    const MutableBytes into = Room(&guarded).subspan(10, 3 * kEntry);
    auto posted = rig.receiver->Post(1, into);
    for (uint32_t entry = 0; entry <= 4; ++entry) {
      // Near what is right, or else all of it would end at the first check.
      rig.sender->Store(
          {.entry = entry,
           .event_id = random() % 3,
           .message = static_cast<uint32_t>(random() % 2),
           .chunk_id = static_cast<uint32_t>(random() % 4) |
                       (random() % 2 == 0 ? kRingLastChunk : 0) |
                       (random() % 8 == 0 ? static_cast<uint32_t>(random()) : 0),
           .bytes = static_cast<uint32_t>(random() % 4 == 0 ? random() : random() % 2 * kEntry),
           .tail = random() % 5});
      (void)(*posted)->done();
    }
    (void)(*posted)->Wait(Duration::zero());
    EXPECT_EQ(guarded.substr(0, 10), std::string(10, '.'));
    EXPECT_EQ(guarded.substr(guarded.size() - 10), std::string(10, '.'));
  }
}

TEST(RingReceiverTest, AMessageThatIsHereIsReceivedFromAPeerThatIsGone) {
  Rig rig = MakeRig();
  EXPECT_FALSE(rig.receiver->peer_is_gone());
  rig.sender->Store(LastChunk(0, 1, 1));
  rig.sender->HangUp();
  EXPECT_TRUE(rig.receiver->peer_is_gone());
  std::string into(10, '.');
  EXPECT_TRUE(rig.receiver->Receive(1, Room(&into), kLong).ok());
  EXPECT_EQ(rig.receiver->Receive(2, Room(&into), kLong).status().code(), StatusCode::kUnavailable);
}

TEST(RingReceiverTest, RingsThatCannotBeAreRefused) {
  for (const RingOptions& options :
       {RingOptions{.entries = 0}, RingOptions{.entries = 5000}, RingOptions{.entry_bytes = 0},
        RingOptions{.entry_bytes = 1000}, RingOptions{.entry_bytes = kGiB}}) {
    auto sockets = MakeSocketPair();
    EXPECT_EQ(RingReceiver::Offer(std::move(sockets->one), options).status().code(),
              StatusCode::kInvalidArgument);
  }
  auto sockets = MakeSocketPair();
  sockets->other.Close();
  EXPECT_EQ(RingReceiver::Offer(std::move(sockets->one), {}).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::fabric
