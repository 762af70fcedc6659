// What must hold between a real sender and a real receiver: bytes arrive as they were sent, by
// event id, from many threads, streams and processes; a full ring is told from a dead link; the
// death of either end is noticed at once.
#include "fabric/emulated/ring_pair.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/hash.h"
#include "common/thread_pool.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kEntry = 4096;
constexpr Duration kLong = seconds(60);
constexpr RingOptions kSmall = {.entries = 4, .entry_bytes = kEntry, .checksums = true};

MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

// The bytes of a message follow from its event id.
std::string Text(uint64_t event_id, uint64_t bytes) {
  std::mt19937_64 random(event_id);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

RingPair Make(const RingOptions& options = kSmall) {
  auto pair = MakeRingPair(options);
  EXPECT_TRUE(pair.ok()) << pair.status();
  return *std::move(pair);
}

// Runs `body` in another process; its result is the exit code.
pid_t InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  EXPECT_GE(child, 0);
  if (child != 0) return child;
  ::_exit(body());
}

int Reap(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(RingPairTest, MessagesOfEverySizeArrive) {
  RingPair pair = Make();
  uint64_t event_id = 0;
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, kEntry - 1, kEntry, kEntry + 1, 4 * kEntry, 100 * kEntry + 17}) {
    const std::string sent = Text(++event_id, bytes);
    std::string got(bytes, '.');
    Result<uint64_t> received = uint64_t{0};
    Thread thread("receive",
                  [&] { received = pair.receiver->Receive(event_id, Room(&got), kLong); });
    EXPECT_TRUE(pair.sender->Send(event_id, AsBytes(sent), kLong).ok());
    thread.Join();
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(*received, bytes);
    EXPECT_EQ(got, sent);
  }
}

TEST(RingPairTest, ManyEventIdsAreUnderWayAtOnce) {
  constexpr uint64_t kThreads = 4, kEach = 50;
  RingPair pair = Make({.entries = 8, .entry_bytes = kEntry});
  const auto bytes_of = [](uint64_t event_id) { return event_id % 7 * 3000; };
  // All are posted before the first is sent, and waited for in another order.
  std::vector<std::string> got(kThreads * kEach);
  std::vector<std::unique_ptr<RingReceiver::Posted>> posted;
  for (uint64_t id = 0; id < got.size(); ++id) {
    got[id].assign(bytes_of(id), '.');
    posted.push_back(*pair.receiver->Post(id, Room(&got[id])));
  }
  std::atomic<uint64_t> failures{0};
  {
    std::vector<Thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back("send", [&, t] {
        for (uint64_t i = 0; i < kEach; ++i) {
          const uint64_t id = (i * kThreads + t) * 37 % got.size();
          const std::string text = Text(id, bytes_of(id));
          if (!pair.sender->Send(id, AsBytes(text), kLong).ok()) ++failures;
        }
      });
    }
    for (uint64_t t = 0; t < 2; ++t) {
      threads.emplace_back("receive", [&, t] {
        for (uint64_t id = t; id < got.size(); id += 2)
          if (!posted[id]->Wait(kLong).ok()) ++failures;
      });
    }
  }
  EXPECT_EQ(failures, 0U);
  for (uint64_t id = 0; id < got.size(); ++id) EXPECT_EQ(got[id], Text(id, bytes_of(id))) << id;
}

TEST(RingPairTest, ReceiversMayComeLate) {
  RingPair pair = Make();
  const std::string text = Text(1, 20 * kEntry), other = Text(2, 100);
  std::string got(text.size(), '.'), got_other(other.size(), '.');
  Status sent;
  Thread thread("send", [&] { sent = pair.sender->Send(1, AsBytes(text), kLong); });
  Thread second("send", [&] { EXPECT_TRUE(pair.sender->Send(2, AsBytes(other), kLong).ok()); });
  EXPECT_TRUE(pair.receiver->Receive(2, Room(&got_other), kLong).ok())
      << "past a message nobody takes";
  EXPECT_TRUE(pair.receiver->Receive(1, Room(&got), kLong).ok());
  thread.Join();
  second.Join();
  EXPECT_TRUE(sent.ok());
  EXPECT_EQ(got, text);
  EXPECT_EQ(got_other, other);
}

TEST(RingPairTest, WhatTheSenderGaveUpEndsAtTheReceiver) {
  RingPair pair = Make({.entries = 1, .entry_bytes = kEntry});
  const std::string text = Text(1, 2 * kEntry);
  EXPECT_EQ(pair.sender->Send(1, AsBytes(text), milliseconds(5)).code(),
            StatusCode::kDeadlineExceeded);
  std::string got(10, '.');
  Thread thread("receive", [&] { EXPECT_TRUE(pair.receiver->Receive(2, Room(&got), kLong).ok()); });
  EXPECT_TRUE(pair.sender->Send(2, AsBytes("0123456789"), kLong).ok()) << "its entry is free again";
  thread.Join();
  EXPECT_EQ(got, "0123456789");
}

TEST(RingPairTest, WhatTheReceiverGaveUpEndsAtTheSender) {
  RingPair pair = Make({.entries = 1, .entry_bytes = kEntry});
  std::string small(kEntry, '.');
  const std::string text = Text(1, 3 * kEntry);
  Status sent;
  Thread thread("send", [&] { sent = pair.sender->Send(1, AsBytes(text), kLong); });
  EXPECT_EQ(pair.receiver->Receive(1, Room(&small), kLong).status().code(),
            StatusCode::kOutOfRange);
  // The receiver has to look at the ring for the sender to hear of it.
  (void)pair.receiver->Receive(9, Room(&small), milliseconds(1));
  thread.Join();
  EXPECT_EQ(sent.code(), StatusCode::kOutOfRange) << sent;
}

TEST(RingPairTest, APathPacesAMessage) {
  RingPair pair = Make({.entries = 4, .entry_bytes = 16 * kKiB});
  EmulatedLink link(4'000'000);
  const EmulatedPath path({&link}, milliseconds(10));
  const std::string text = Text(1, 200'000);
  std::string got(text.size(), '.');
  auto posted = pair.receiver->Post(1, Room(&got));
  const TimePoint begin = Clock::System().Now();
  Thread thread("receive", [&] { EXPECT_TRUE((*posted)->Wait(kLong).ok()); });
  EXPECT_TRUE(pair.sender->Send(1, AsBytes(text), kLong, {.path = &path}).ok());
  EXPECT_GE(Clock::System().Now() - begin, path.TimeOf(text.size()));
  thread.Join();
  EXPECT_EQ(got, text);
  const Status late = pair.sender->Send(2, AsBytes(text), milliseconds(1), {.path = &path});
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << "the deadline holds on a slow path, too";
}

TEST(RingPairTest, AProbeTellsASaturatedPeerFromADeadLink) {
  RingPair pair = Make({.entries = 2, .entry_bytes = kEntry});
  auto answer = pair.sender->Probe(kLong);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->saturated());
  const std::string text(2 * kEntry, 'x');
  Status sent;
  Thread thread("send", [&] { sent = pair.sender->Send(1, AsBytes(text), kLong); });
  do {
    answer = pair.sender->Probe(kLong);
    ASSERT_TRUE(answer.ok()) << "nobody receives, but the process answers: " << answer.status();
  } while (!answer->saturated());
  std::string got(text.size(), '.');
  EXPECT_TRUE(pair.receiver->Receive(1, Room(&got), kLong).ok());
  thread.Join();
  EXPECT_TRUE(sent.ok());
  pair.receiver.reset();
  EXPECT_EQ(pair.sender->Probe(kLong).status().code(), StatusCode::kUnavailable);
}

TEST(RingPairTest, ProcessesSendToEachOther) {
  auto there = MakeSocketPair(), back = MakeSocketPair();
  constexpr uint64_t kMessages = 200;
  const auto bytes_of = [](uint64_t id) { return id * 131 % 40'000; };
  const pid_t child = InChild([&] {
    there->one.Close();
    back->one.Close();
    auto receiver = RingReceiver::Offer(std::move(there->other), kSmall);
    auto sender = RingSender::Accept(std::move(back->other), kLong);
    if (!receiver.ok() || !sender.ok()) return 2;
    for (uint64_t id = 0; id < kMessages; ++id) {
      std::string text(bytes_of(id), '.');
      if (!(*receiver)->Receive(id, Room(&text), kLong).ok()) return 3;
      if (!(*sender)->Send(id, AsBytes(text), kLong).ok()) return 4;
    }
    return 0;
  });
  there->other.Close();
  back->other.Close();
  auto receiver = RingReceiver::Offer(std::move(back->one), kSmall);
  auto sender = RingSender::Accept(std::move(there->one), kLong);
  ASSERT_TRUE(receiver.ok() && sender.ok()) << sender.status();
  for (uint64_t id = 0; id < kMessages; ++id) {
    const std::string text = Text(id, bytes_of(id));
    std::string echo(text.size(), '.');
    ASSERT_TRUE((*sender)->Send(id, AsBytes(text), kLong).ok()) << id;
    ASSERT_TRUE((*receiver)->Receive(id, Room(&echo), kLong).ok()) << id;
    ASSERT_EQ(echo, text) << id;
  }
  EXPECT_EQ(Reap(child), 0);
}

TEST(RingPairTest, ASenderKilledInMidTransferEndsTheReceive) {
  auto sockets = MakeSocketPair();
  const pid_t child = InChild([&] {
    sockets->one.Close();
    auto sender = RingSender::Accept(std::move(sockets->other), kLong);
    if (!sender.ok()) return 2;
    EmulatedLink link(800'000);  // 10 s for what it sends
    const EmulatedPath path({&link}, Duration::zero());
    (void)(*sender)->Send(2, AsBytes("started"), kLong);
    (void)(*sender)->Send(1, AsBytes(std::string(8'000'000, 'x')), kLong, {.path = &path});
    return 0;
  });
  sockets->other.Close();
  auto receiver = RingReceiver::Offer(std::move(sockets->one), kSmall);
  ASSERT_TRUE(receiver.ok());
  std::string first(7, '.'), got(8'000'000, '.');
  auto posted = (*receiver)->Post(1, Room(&got));
  ASSERT_TRUE((*receiver)->Receive(2, Room(&first), kLong).ok());
  EXPECT_EQ((*posted)->Wait(milliseconds(20)).status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  const TimePoint killed = Clock::System().Now();
  EXPECT_EQ((*posted)->Wait(kLong).status().code(), StatusCode::kUnavailable);
  EXPECT_LT(Clock::System().Now() - killed, seconds(30)) << "noticed, not waited out";
  EXPECT_EQ(Reap(child), 128 + SIGKILL);
}

TEST(RingPairTest, AReceiverKilledInMidTransferEndsTheSend) {
  auto sockets = MakeSocketPair();
  const pid_t child = InChild([&] {
    sockets->other.Close();
    auto receiver = RingReceiver::Offer(std::move(sockets->one), kSmall);
    if (!receiver.ok()) return 2;
    std::string first(7, '.');
    (void)(*receiver)->Receive(2, Room(&first), kLong);
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  sockets->one.Close();
  auto sender = RingSender::Accept(std::move(sockets->other), kLong);
  ASSERT_TRUE(sender.ok());
  const std::string text(1'000'000, 'x');
  Status large;
  Thread thread("send", [&] { large = (*sender)->Send(1, AsBytes(text), kLong); });
  (void)(*sender)->Send(2, AsBytes("started"), kLong);  // its ack may or may not come back
  thread.Join();
  EXPECT_EQ(large.code(), StatusCode::kUnavailable) << large;
  EXPECT_EQ(Reap(child), 128 + SIGKILL);
}

}  // namespace
}  // namespace ems::fabric
