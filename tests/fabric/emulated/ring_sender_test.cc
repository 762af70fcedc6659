// What must hold: an offer is checked before it is used; data comes before its field; acks say what
// became of a message, and such as no receiver writes end the ring; every wait ends.
#include "fabric/emulated/ring_sender.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "common/hash.h"
#include "common/thread_pool.h"
#include "fabric/emulated/emulated_link.h"
#include "tests/support/raw_ring.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::RawRingReceiver;

constexpr uint64_t kEntry = 4096;
constexpr Duration kLong = seconds(20);

// A sender, and the other end of its ring in the test's hands.
struct Rig {
  std::unique_ptr<RawRingReceiver> receiver;
  std::unique_ptr<RingSender> sender;
};

Rig MakeRig(uint32_t entries = 4) {
  auto sockets = MakeSocketPair();
  auto receiver = std::make_unique<RawRingReceiver>(std::move(sockets->one), entries, kEntry);
  receiver->Offer(receiver->Hello());
  auto sender = RingSender::Accept(std::move(sockets->other), kLong);
  EXPECT_TRUE(sender.ok()) << sender.status();
  return {std::move(receiver), *std::move(sender)};
}

TEST(RingSenderTest, OffersThatMakeNoSenseAreRefused) {
  const auto refused = [](auto change) {
    auto sockets = MakeSocketPair();
    RawRingReceiver receiver(std::move(sockets->one), 4, kEntry);
    RingHello hello = receiver.Hello();
    change(&hello);
    receiver.Offer(hello);
    return RingSender::Accept(std::move(sockets->other), kLong).status().code() ==
           StatusCode::kDataLoss;
  };
  EXPECT_TRUE(refused([](RingHello* h) { h->magic ^= 1; }));
  EXPECT_TRUE(refused([](RingHello* h) { h->entries = 0; }));
  EXPECT_TRUE(refused([](RingHello* h) { h->entries = ~0U; }));
  EXPECT_TRUE(refused([](RingHello* h) { h->entry_bytes = 100; }));
  EXPECT_TRUE(refused([](RingHello* h) { h->checksums = 2; }));
  EXPECT_TRUE(refused([](RingHello* h) { h->memory_bytes += kEntry; }));
  EXPECT_TRUE(refused([](RingHello* h) {  // consistent, but the file is smaller
    h->entries = 8;
    h->memory_bytes = RingLayout(8, kEntry).memory_bytes();
  }));
  EXPECT_FALSE(refused([](RingHello*) {}));
}

TEST(RingSenderTest, DescriptorsOfAnOfferAreChecked) {
  auto sockets = MakeSocketPair();
  RawRingReceiver receiver(std::move(sockets->one), 4, kEntry);
  // A descriptor that could block the thread that writes to it.
  receiver.Offer(receiver.Hello(), std::array{receiver.memory_fd(), receiver.event_fd(),
                                              receiver.memory_fd(), receiver.event_fd()});
  EXPECT_EQ(RingSender::Accept(std::move(sockets->other), kLong).status().code(),
            StatusCode::kDataLoss);
  sockets = MakeSocketPair();
  RawRingReceiver second(std::move(sockets->one), 4, kEntry);
  second.Offer(second.Hello(), std::array{second.memory_fd(), second.event_fd()});
  EXPECT_EQ(RingSender::Accept(std::move(sockets->other), kLong).status().code(),
            StatusCode::kDataLoss);
}

TEST(RingSenderTest, WaitsForAnOfferNoLongerThanToldAndNotForADeadPeer) {
  auto sockets = MakeSocketPair();
  EXPECT_EQ(RingSender::Accept(std::move(sockets->other), milliseconds(5)).status().code(),
            StatusCode::kDeadlineExceeded);
  sockets = MakeSocketPair();
  sockets->one.Close();
  EXPECT_EQ(RingSender::Accept(std::move(sockets->other), kLong).status().code(),
            StatusCode::kUnavailable);
}

TEST(RingSenderTest, TheFieldSaysWhatIsInTheEntry) {
  Rig rig = MakeRig();
  Status status;
  Thread thread("send", [&] { status = rig.sender->Send(42, AsBytes("payload"), kLong); });
  rig.receiver->AwaitTail(0);
  const RingField* field = rig.receiver->layout().Field(rig.receiver->base(), 0);
  EXPECT_EQ(field->event_id, 42U);
  EXPECT_EQ(field->chunk_id, kRingLastChunk);
  EXPECT_EQ(field->chunk_bytes, 7U);
  EXPECT_EQ(AsText({rig.receiver->layout().Entry(rig.receiver->base(), 0), 7}), "payload");
  rig.receiver->StoreAck(0, RingAckWord(field->tail, RingAck::kTaken));
  thread.Join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RingSenderTest, AcksSayWhatBecameOfAMessage) {
  Rig rig = MakeRig(1);
  uint64_t tail = 0;
  for (const auto& [ack, code] : {std::pair(RingAck::kGivenUp, StatusCode::kDeadlineExceeded),
                                  std::pair(RingAck::kTooLarge, StatusCode::kOutOfRange),
                                  std::pair(RingAck::kCorrupt, StatusCode::kDataLoss),
                                  std::pair(RingAck::kTaken, StatusCode::kOk)}) {
    Status status;
    Thread thread("send", [&] { status = rig.sender->Send(1, AsBytes("x"), kLong); });
    const Deadline deadline = Deadline::After(kLong);
    while (rig.receiver->Tail(0) == tail && !deadline.Passed()) std::this_thread::yield();
    tail = rig.receiver->Tail(0);
    rig.receiver->StoreAck(0, RingAckWord(tail, ack));
    thread.Join();
    EXPECT_EQ(status.code(), code) << status;
    // Cancels are sent; the ring goes on once the receiver has heard it.
    const uint64_t cancel = rig.receiver->Tail(1);
    if (cancel != 0) rig.receiver->StoreAck(1, RingAckWord(cancel, RingAck::kTaken));
    tail = rig.receiver->Tail(0);
  }
}

TEST(RingSenderTest, AcksThatNoReceiverWritesEndTheRing) {
  for (const uint64_t wrong : {uint64_t{0x7700}, ~uint64_t{0}, RingAckWord(1, RingAck{9})}) {
    SCOPED_TRACE(wrong);
    Rig rig = MakeRig();
    Status status;
    Thread thread("send", [&] { status = rig.sender->Send(1, AsBytes("x"), kLong); });
    rig.receiver->AwaitTail(0);
    rig.receiver->StoreAck(0, wrong);
    thread.Join();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_EQ(rig.sender->Send(2, AsBytes("x"), kLong).code(), StatusCode::kDataLoss);
  }
}

TEST(RingSenderTest, AnAckOfWhatWasNotSentYetEndsTheRing) {
  Rig rig = MakeRig();
  EmulatedLink link(1'000'000'000);
  const EmulatedPath slow({&link}, seconds(60));
  Status status;
  Thread thread("send", [&] {
    status = rig.sender->Send(1, AsBytes("x"), milliseconds(300), {.path = &slow});
  });
  const std::byte* entry = rig.receiver->layout().Entry(rig.receiver->base(), 0);
  const Deadline deadline = Deadline::After(kLong);
  while (*reinterpret_cast<const volatile char*>(entry) != 'x' && !deadline.Passed())
    std::this_thread::yield();
  rig.receiver->StoreAck(0, RingAckWord(1, RingAck::kTaken));
  EXPECT_EQ(rig.sender->Send(2, AsBytes("y"), kLong).code(), StatusCode::kDataLoss);
  thread.Join();
  EXPECT_FALSE(status.ok());
}

TEST(RingSenderTest, AMessageThatNobodyTakesLeavesTheRingToOthers) {
  Rig rig = MakeRig(4);
  const std::string large(10 * kEntry, 'x');
  EXPECT_EQ(rig.sender->Send(1, AsBytes(large), milliseconds(20)).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rig.receiver->entries_filled(), 2U);
  EXPECT_EQ(rig.receiver->layout().Field(rig.receiver->base(), 4)->chunk_id, kRingCancel);
  EXPECT_EQ(rig.sender->Send(2, AsBytes(large), milliseconds(20)).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rig.receiver->entries_filled(), 4U);
  EXPECT_EQ(rig.sender->Send(3, AsBytes("x"), milliseconds(5)).code(),
            StatusCode::kDeadlineExceeded)
      << "no entry is free";
}

TEST(RingSenderTest, AnEventIdIsSentOnceAtATime) {
  Rig rig = MakeRig();
  Status status;
  Thread thread("send", [&] { status = rig.sender->Send(1, AsBytes("x"), kLong); });
  rig.receiver->AwaitTail(0);
  EXPECT_EQ(rig.sender->Send(1, AsBytes("y"), kLong).code(), StatusCode::kAlreadyExists);
  rig.receiver->StoreAck(0, RingAckWord(rig.receiver->Tail(0), RingAck::kTaken));
  thread.Join();
  EXPECT_TRUE(status.ok());
}

TEST(RingSenderTest, APeerThatGoesEndsAllWaits) {
  Rig rig = MakeRig();
  Status small, large;
  const std::string text(20 * kEntry, 'x');
  Thread first("send", [&] { small = rig.sender->Send(1, AsBytes("x"), kLong); });
  Thread second("send", [&] { large = rig.sender->Send(2, AsBytes(text), kLong); });
  rig.receiver->AwaitTail(2);
  rig.receiver->HangUp();
  first.Join();
  second.Join();
  EXPECT_EQ(small.code(), StatusCode::kUnavailable) << small;
  EXPECT_EQ(large.code(), StatusCode::kUnavailable) << large;
}

TEST(RingSenderTest, AStoppedSendEndsWhetherOrNotItsReceiverTookSomething) {
  for (const uint64_t bytes : {uint64_t{10}, 3 * kEntry}) {
    const Rig rig = MakeRig();
    const std::vector<std::byte> message(bytes);
    std::atomic<bool> stop{false};
    Status sent;
    {
      const Thread sending("send",
                           [&] { sent = rig.sender->Send(7, message, kLong, {.stop = &stop}); });
      rig.receiver->AwaitTail(0);
      stop.store(true);
      rig.sender->Wake();
    }
    EXPECT_EQ(sent.code(), StatusCode::kCancelled) << sent;
  }
}

TEST(RingSenderTest, AReceiverThatTakesNothingLosesItsMessagesUntilItTakesSomething) {
  const Rig rig = MakeRig(4);
  const std::string large(10 * kEntry, 'x');
  const RingSendOptions limited{.stall_limit = milliseconds(20)};
  EXPECT_EQ(rig.sender->Send(1, AsBytes(large), kLong, limited).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.sender->stalled(), 1U);
  // Nobody else waits for the same again, however long its limit is.
  EXPECT_EQ(rig.sender->Send(2, AsBytes("x"), kLong, {.stall_limit = 10 * kLong}).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(rig.sender->stalled(), 2U);
  EXPECT_EQ(rig.receiver->entries_filled(), 2U);

  rig.receiver->StoreAck(0, RingAckWord(rig.receiver->Tail(0), RingAck::kGivenUp));
  Status sent;
  {
    const Thread sending("send", [&] {
      sent = rig.sender->Send(3, AsBytes("x"), kLong, {.stall_limit = 10 * kLong});
    });
    const RingField* field = rig.receiver->layout().Field(rig.receiver->base(), 0);
    const Deadline deadline = Deadline::After(kLong);
    while (field->event_id != 3 && !deadline.Passed()) std::this_thread::yield();
    rig.receiver->AwaitTail(0);
    const uint64_t tail = rig.receiver->Tail(0);
    rig.receiver->StoreAck(0, RingAckWord(tail, RingAck::kTaken));
  }
  EXPECT_EQ(sent, OkStatus());
  EXPECT_EQ(rig.sender->stalled(), 2U);
}

TEST(RingSenderTest, AMessageThatMovesMayTakeLongerThanTheLimit) {
  constexpr Duration kLimit = seconds(2);  // far above what a busy machine adds to one step
  const Rig rig = MakeRig(1);
  const std::string large(5 * kEntry, 'x');
  Status sent;
  const TimePoint begin = Clock::System().Now();
  {
    const Thread sending("send", [&] {
      sent = rig.sender->Send(1, AsBytes(large), kLong, {.stall_limit = kLimit});
    });
    for (uint64_t tail = 1; tail <= 5; ++tail) {
      const Deadline deadline = Deadline::After(kLong);
      while (rig.receiver->Tail(0) != tail && !deadline.Passed()) std::this_thread::yield();
      StopFlag().WaitFor(milliseconds(450));
      rig.receiver->StoreAck(0, RingAckWord(tail, RingAck::kTaken));
    }
  }
  EXPECT_EQ(sent, OkStatus());
  EXPECT_GT(Clock::System().Now() - begin, kLimit);
}

TEST(RingSenderTest, TheReceiverHearsOfEveryMessageThatWasGivenUp) {
  constexpr uint64_t kCount = RingSender::kEndsMax + 20;
  const Rig rig = MakeRig(1);
  std::atomic<uint64_t> ended{0};
  const Thread sending("send", [&] {
    for (uint64_t id = 1; id <= kCount; ++id) {
      EXPECT_EQ(rig.sender->Send(id, AsBytes("x"), kLong).code(), StatusCode::kDeadlineExceeded);
      ended.store(id);
    }
  });
  // It hears of none until no more can be kept in mind, then of one after the other.
  const RingLayout& layout = rig.receiver->layout();
  const RingField* cancels = layout.Field(rig.receiver->base(), 1);
  std::vector<uint64_t> heard;
  uint64_t acked = 0, heard_tail = 0;
  const Deadline deadline = Deadline::After(kLong);
  while (heard.size() < kCount && !deadline.Passed()) {
    const uint64_t tail = rig.receiver->Tail(0), cancel = rig.receiver->Tail(1);
    if (tail != acked) {
      acked = tail;
      rig.receiver->StoreAck(0, RingAckWord(tail, RingAck::kGivenUp));
    } else if (ended.load() > RingSender::kEndsMax && cancel != heard_tail) {
      heard_tail = cancel;
      heard.push_back(cancels->event_id);
      rig.receiver->StoreAck(1, RingAckWord(cancel, RingAck::kTaken));
    } else if (ended.load() == kCount) {
      (void)rig.sender->Probe(milliseconds(1));  // what is left is told beside a probe, too
    } else {
      std::this_thread::yield();
    }
  }
  ASSERT_EQ(heard.size(), kCount);
  for (uint64_t id = 1; id <= kCount; ++id) ASSERT_EQ(heard[id - 1], id);
}

TEST(RingSenderTest, WhoHangsUpEndsAllWaits) {
  const Rig rig = MakeRig();
  const std::vector<std::byte> message(10);
  Status sent;
  {
    const Thread sending("send", [&] { sent = rig.sender->Send(7, message, kLong); });
    rig.sender->HangUp();
  }
  EXPECT_EQ(sent.code(), StatusCode::kUnavailable) << sent;
  EXPECT_EQ(rig.sender->Probe(kLong).status().code(), StatusCode::kUnavailable);
}

TEST(RingSenderTest, AProbeThatNobodyAnswersTellsADeadLink) {
  Rig rig = MakeRig();
  EXPECT_EQ(rig.sender->Probe(milliseconds(5)).status().code(), StatusCode::kDeadlineExceeded);
  const RingPage* page = rig.receiver->page();
  EXPECT_EQ(page->probe, 1U);
  EXPECT_EQ(page->probe_checksum,
            Hash64(rig.receiver->layout().Probe(rig.receiver->base()), page->probe));
  rig.receiver->HangUp();
  EXPECT_EQ(rig.sender->Probe(kLong).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::fabric
