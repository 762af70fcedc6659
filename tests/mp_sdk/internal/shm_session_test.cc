// What must hold: only memory that is what it was said to be is mapped; a view's hazard is there
// before its bytes are trusted and gone after; whatever the server does, no read faults.
#include "mp_sdk/internal/shm_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "common/object_key.h"
#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/shm_peer.h"

namespace ems::internal {
namespace {

using shm::SessionMessage;
using shm::SessionOp;
using testing::Eventually;
using testing::MakeValue;
using testing::PoolImage;
using testing::ShmPeer;
using wire::WireStatus;
using namespace std::chrono_literals;

struct ShmSessionTest : ::testing::Test {
  Status Attach() {
    peer.Start();
    auto attached = ShmSession::Attach(peer.address(), {.ns = PoolImage::kNs, .token = {}}, 2s,
                                       [this] { ++wakes; });
    if (attached.ok()) session = *attached;
    return attached.status();
  }
  // Does what ems-shm does, until `ready`.
  template <typename Ready>
  bool Serve(Ready ready) {
    return Eventually([&] { return !session->Send() || !session->Receive(&gate) || ready(); });
  }
  void MapAll() {
    ASSERT_TRUE(Serve([&] { return session->table(PoolImage::kTableId) != nullptr; }));
    session->Want(SessionOp::kSegment, PoolImage::kSegmentId);
    ASSERT_TRUE(Serve([&] { return session->segment(PoolImage::kSegmentId) != nullptr; }));
  }
  ObjectReader reader() const { return {session.get(), &session->identity(), PoolImage::kView}; }
  ReadOutcome Find(std::string_view key) { return reader().Find(key, KeyHash(key), &found); }
  std::vector<uint64_t> Hazards() {
    std::vector<uint64_t> set;
    for (uint32_t i = 0; i < peer.page().hazard_end; ++i) {
      if (peer.page().hazards[i] != 0) set.push_back(peer.page().hazards[i]);
    }
    return set;
  }

  PoolImage image;
  ShmPeer peer{&image};
  ReaderGate gate;
  std::shared_ptr<ShmSession> session;
  FoundObject found;
  std::atomic<int> wakes{0};
};

TEST_F(ShmSessionTest, AttachesAndReadsWhatTheServerShares) {
  const std::string value = MakeValue("ns", "key", 1, 100'000);
  image.Put(0, "key", value, 9);
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(session->identity().boot_id, PoolImage::kBootId);
  MapAll();
  std::string copy;
  EXPECT_EQ(reader().Read("key", KeyHash("key"), {.into = {}, .grow = &copy}, &found),
            ReadOutcome::kHit);
  EXPECT_EQ(copy, value);
  EXPECT_EQ(peer.tables_asked, 1) << "all shards name one table";
  EXPECT_GE(wakes, 2);
}

TEST_F(ShmSessionTest, AMemoryIsAskedForOnce) {
  ASSERT_TRUE(Attach().ok());
  for (int i = 0; i < 100; ++i) session->Want(SessionOp::kSegment, PoolImage::kSegmentId);
  for (int i = 0; i < 100; ++i) session->Want(SessionOp::kSegment, 99);
  ASSERT_TRUE(Serve([&] { return session->segment(PoolImage::kSegmentId) != nullptr; }));
  ASSERT_TRUE(Serve([&] { return peer.segments_asked >= 2; }));
  EXPECT_EQ(peer.segments_asked, 2);
  EXPECT_EQ(session->segment(99), nullptr) << "the server has none";
}

TEST_F(ShmSessionTest, TheServersReasonIsKept) {
  peer.attach_status = WireStatus::kUnimplemented;
  const Status refused = Attach();
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(Message(refused), "not here");
}

TEST_F(ShmSessionTest, ARefusalInTheWelcomeIsKeptToo) {
  peer.spoil_welcome = [](SessionMessage* message, std::vector<int>* fds) {
    message->status = static_cast<uint32_t>(WireStatus::kQuotaExceeded);
    message->text = {'f', 'u', 'l', 'l'};
    fds->clear();
  };
  const Status refused = Attach();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(refused), "full");
}

TEST_F(ShmSessionTest, WelcomesThatMakeNoSenseAreRefused) {
  fabric::Fd unsealed(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  const std::vector<std::pair<std::string, ShmPeer::Spoil>> cases = {
      {"no descriptors", [](SessionMessage*, std::vector<int>* fds) { fds->clear(); }},
      {"one descriptor", [](SessionMessage*, std::vector<int>* fds) { fds->pop_back(); }},
      {"swapped", [](SessionMessage*, std::vector<int>* fds) { std::swap((*fds)[0], (*fds)[1]); }},
      {"unsealed", [&](SessionMessage*, std::vector<int>* fds) { (*fds)[0] = unsealed.get(); }},
      {"a pipe", [](SessionMessage*, std::vector<int>* fds) { (*fds)[1] = STDIN_FILENO; }},
      {"another op",
       [](SessionMessage* message, std::vector<int>*) { message->op = SessionOp::kSegment; }},
      {"unknown status", [](SessionMessage* message, std::vector<int>*) { message->status = 999; }},
  };
  for (const auto& [what, spoil] : cases) {
    ShmPeer bad(&image);
    bad.spoil_welcome = spoil;
    bad.Start();
    EXPECT_FALSE(
        ShmSession::Attach(bad.address(), {.ns = PoolImage::kNs, .token = {}}, 2s, [] {}).ok())
        << what;
  }
}

TEST_F(ShmSessionTest, AnotherNamespacesPageIsRefused) {
  image.page().namespace_generation = 99;
  EXPECT_EQ(Attach().code(), StatusCode::kInvalidArgument);
}

TEST_F(ShmSessionTest, AnotherLayoutIsRefused) {
  image.page().version = shm::kLayoutVersion + 1;
  EXPECT_EQ(Attach().code(), StatusCode::kInvalidArgument);
}

TEST_F(ShmSessionTest, AServerThatSaysNothingIsGivenUp) {
  const Status status =  // nobody accepts
      ShmSession::Attach(peer.address(), {.ns = PoolImage::kNs, .token = {}}, 50ms, [] {}).status();
  EXPECT_FALSE(status.ok());
}

TEST_F(ShmSessionTest, DescriptorsThatDoNotFitTheirMessageAreNotMapped) {
  std::atomic<int> turn{0};
  peer.spoil_answer = [&](SessionMessage* message, std::vector<int>* fds) {
    switch (turn++ % 4) {
      case 0:
        message->bytes += 4096;
        break;
      case 1:
        fds->clear();
        break;
      case 2:
        fds->push_back(fds->front());
        break;
      default:
        message->bytes = UINT64_MAX;
    }
  };
  ASSERT_TRUE(Attach().ok());
  for (int i = 0; i < 4; ++i) session->Want(SessionOp::kSegment, PoolImage::kSegmentId);
  ASSERT_TRUE(Serve([&] { return turn.load() >= 2; }));
  ASSERT_TRUE(Serve([&] { return true; }));
  EXPECT_EQ(session->table(PoolImage::kTableId), nullptr);
  EXPECT_EQ(session->segment(PoolImage::kSegmentId), nullptr);
  EXPECT_TRUE(session->usable()) << "the session goes on without";
}

TEST_F(ShmSessionTest, AnUnknownMessageEndsTheSession) {
  ASSERT_TRUE(Attach().ok());
  peer.Tell(static_cast<SessionOp>(77), 0);
  EXPECT_TRUE(Eventually([&] { return !session->Receive(&gate); }));
}

TEST_F(ShmSessionTest, TheEndOfTheServerIsSeen) {
  ASSERT_TRUE(Attach().ok());
  peer.HangUp();
  EXPECT_TRUE(Eventually([&] { return !session->Receive(&gate); }));
}

TEST_F(ShmSessionTest, AViewHoldsAHazardAsLongAsItLives) {
  const std::string value = MakeValue("ns", "key", 1, 1000);
  image.Put(0, "key", value, 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  ASSERT_EQ(Find("key"), ReadOutcome::kHit);
  ObjectView view;
  ASSERT_EQ(session->Pin(found, reader(), &view), ShmSession::Pinned::kYes);
  EXPECT_THAT(Hazards(), ::testing::ElementsAre(shm::GenerationTag(9, KeyHash("key"))));
  EXPECT_TRUE(view.mapped());
  EXPECT_EQ(AsText(view.bytes()), value);
  EXPECT_TRUE(view.Verify().ok());
  EXPECT_EQ(session->pinned_bytes(), 1000U + shm::kObjectHeaderBytes);
  ObjectView moved = std::move(view);
  EXPECT_FALSE(view);  // NOLINT(bugprone-use-after-move)
  EXPECT_THAT(Hazards(), ::testing::SizeIs(1));
  EXPECT_EQ(AsText(moved.bytes()), value);
  moved.Release();
  EXPECT_THAT(Hazards(), ::testing::IsEmpty());
  EXPECT_EQ(session->pinned_bytes(), 0U);
}

TEST_F(ShmSessionTest, WhatIsGoneCannotBePinned) {
  image.Put(0, "key", "value", 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  ASSERT_EQ(Find("key"), ReadOutcome::kHit);
  image.Unlink("key", 9);
  ObjectView view;
  EXPECT_EQ(session->Pin(found, reader(), &view), ShmSession::Pinned::kChanged);
  EXPECT_THAT(Hazards(), ::testing::IsEmpty());
  EXPECT_EQ(session->pinned_bytes(), 0U);
}

TEST_F(ShmSessionTest, ViewsPinNoMoreThanTheyMay) {
  peer.pin_bytes_max = 2500;
  image.Put(0, "key", std::string(1000, 'x'), 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  ASSERT_EQ(Find("key"), ReadOutcome::kHit);
  ObjectView a, b, c;
  EXPECT_EQ(session->Pin(found, reader(), &a), ShmSession::Pinned::kYes);
  EXPECT_EQ(session->Pin(found, reader(), &b), ShmSession::Pinned::kYes);
  EXPECT_EQ(session->Pin(found, reader(), &c), ShmSession::Pinned::kFull);
  a.Release();
  EXPECT_EQ(session->Pin(found, reader(), &c), ShmSession::Pinned::kYes);
}

TEST_F(ShmSessionTest, EachViewHasASlotOfItsOwnUntilNoneIsLeft) {
  image.Put(0, "key", "v", 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  ASSERT_EQ(Find("key"), ReadOutcome::kHit);
  std::vector<ObjectView> views(shm::kHazardsMax);
  for (ObjectView& view : views) {
    ASSERT_EQ(session->Pin(found, reader(), &view), ShmSession::Pinned::kYes);
  }
  EXPECT_EQ(Hazards().size(), shm::kHazardsMax);
  EXPECT_EQ(peer.page().hazard_end, shm::kHazardsMax);
  ObjectView one_more;
  EXPECT_EQ(session->Pin(found, reader(), &one_more), ShmSession::Pinned::kFull);
  views.clear();
  EXPECT_THAT(Hazards(), ::testing::IsEmpty());
  EXPECT_EQ(peer.page().hazard_end, HazardPointers::kEndMin) << "the server looks at few again";
  EXPECT_EQ(session->Pin(found, reader(), &one_more), ShmSession::Pinned::kYes);
}

TEST_F(ShmSessionTest, ASegmentThatIsGoneReadsAsZeros) {
  image.Put(0, "key", "value", 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  const fabric::RemoteMemory* const segment = session->segment(PoolImage::kSegmentId);
  peer.Tell(SessionOp::kSegmentGone, PoolImage::kSegmentId);
  ASSERT_TRUE(Serve([&] { return session->segment(PoolImage::kSegmentId) == nullptr; }));
  // A reader that was in it goes on.
  EXPECT_EQ(segment->LoadWord(0), 0U);
  EXPECT_EQ(Find("key"), ReadOutcome::kNeedSegment);
  session->DropGone(gate.Poll());
  EXPECT_TRUE(Serve([&] { return peer.segments_dropped == 1; })) << "the server waits to hear it";
}

TEST_F(ShmSessionTest, AViewKeepsTheAddressesOfASegmentThatIsGone) {
  image.Put(0, "key", std::string(1000, 'x'), 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  ASSERT_EQ(Find("key"), ReadOutcome::kHit);
  ObjectView view;
  ASSERT_EQ(session->Pin(found, reader(), &view), ShmSession::Pinned::kYes);
  peer.Tell(SessionOp::kSegmentGone, PoolImage::kSegmentId);
  ASSERT_TRUE(Serve([&] { return session->segment(PoolImage::kSegmentId) == nullptr; }));
  for (int i = 0; i < 3; ++i) session->DropGone(gate.Poll());
  EXPECT_EQ(view.bytes()[0], std::byte{0}) << "empty, but there";
}

TEST_F(ShmSessionTest, AViewOutlivesTheServerAndTheSessionsEnd) {
  const std::string value = MakeValue("ns", "key", 1, 1000);
  image.Put(0, "key", value, 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  ASSERT_EQ(Find("key"), ReadOutcome::kHit);
  ObjectView view;
  ASSERT_EQ(session->Pin(found, reader(), &view), ShmSession::Pinned::kYes);
  peer.HangUp();
  ASSERT_TRUE(Eventually([&] { return !session->Receive(&gate); }));
  session->End();
  EXPECT_FALSE(session->usable());
  session.reset();
  EXPECT_EQ(AsText(view.bytes()), value);
}

TEST_F(ShmSessionTest, TouchesAreWrittenDown) {
  ASSERT_TRUE(Attach().ok());
  for (uint64_t i = 0; i < shm::kTouchesMax + 10; i += 2) {
    const std::array<Hash128, 2> two{Hash128{.lo = i, .hi = i + 1}, {.lo = i + 1, .hi = i + 2}};
    session->Touch(two);
  }
  EXPECT_EQ(peer.page().touch_count, shm::kTouchesMax + 10);
  EXPECT_EQ(peer.page().touches[9].hash_lo, shm::kTouchesMax + 9);
  EXPECT_EQ(peer.page().touches[10].hash_hi, 11U);
}

TEST_F(ShmSessionTest, MemoryIsOfferedAndTaken) {
  ASSERT_TRUE(Attach().ok());
  auto memory = fabric::SharedMemory::Create("test", 64 * kKiB);
  ASSERT_TRUE(memory.ok());
  EXPECT_FALSE(session->staged());
  session->Offer(**memory, 32 * kKiB);
  ASSERT_TRUE(Serve([&] { return session->staged().has_value(); }));
  EXPECT_EQ(session->staged()->bytes, 32 * kKiB);
  EXPECT_EQ(session->staged()->session, 11U);
  EXPECT_EQ(session->staged()->secret, 22U);
  EXPECT_EQ(peer.registered_bytes, 32 * kKiB);
  session->Offer(**memory, 48 * kKiB);
  ASSERT_TRUE(Serve([&] { return session->staged()->bytes == 48 * kKiB; }));
  peer.register_status = WireStatus::kRetryLater;
  session->Offer(**memory, 64 * kKiB);
  ASSERT_TRUE(Serve([&] { return peer.registered_bytes == 64 * kKiB; }));
  ASSERT_TRUE(Serve([&] { return true; }));
  EXPECT_EQ(session->staged()->bytes, 48 * kKiB) << "a refusal changes nothing";
  session->StopStaging();
  EXPECT_FALSE(session->staged());
}

TEST_F(ShmSessionTest, MemoryThatIsRefusedIsNotUsed) {
  peer.register_status = WireStatus::kInvalid;
  ASSERT_TRUE(Attach().ok());
  auto memory = fabric::SharedMemory::Create("test", 64 * kKiB);
  session->Offer(**memory, 64 * kKiB);
  ASSERT_TRUE(Serve([&] { return peer.registered_bytes != 0; }));
  ASSERT_TRUE(Serve([&] { return true; }));
  EXPECT_FALSE(session->staged());
}

TEST_F(ShmSessionTest, AnAddressThatIsNoUnixSocketIsRefused) {
  const auto attached = ShmSession::Attach({.host = "127.0.0.1", .port = 1, .unix_path = {}},
                                           {.ns = PoolImage::kNs, .token = {}}, 2s, [] {});
  EXPECT_EQ(attached.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ShmSessionTest, AForkedChildTakesNoPart) {
  image.Put(0, "key", "value", 9);
  ASSERT_TRUE(Attach().ok());
  MapAll();
  ASSERT_EQ(Find("key"), ReadOutcome::kHit);
  ObjectView view;
  ASSERT_EQ(session->Pin(found, reader(), &view), ShmSession::Pinned::kYes);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool usable = session->usable();
    view.Release();  // must not unpin the parent's
    ::_exit(usable ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_THAT(Hazards(), ::testing::SizeIs(1));
}

}  // namespace
}  // namespace ems::internal
