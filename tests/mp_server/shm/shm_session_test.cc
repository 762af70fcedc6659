// What must hold: a session gives its client what it asks for and nothing else, waits for a client
// that reads slowly, tells it what is gone, and releases all that it held when it ends.
#include "mp_server/shm/shm_session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric/shm/shm_transport.h"
#include "tests/mp_server/shm/session_peer.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using fabric::Fd;
using shm::SessionOp;
using wire::WireStatus;

constexpr uint64_t kId = 7;

class ShmSessionTest : public NamespaceFixture {
 protected:
  ShmSessionTest() {
    Make(8 * kMiB);
    EXPECT_EQ(store_->Share(), OkStatus());
    EXPECT_EQ(Put(*store_, "key", "value"), OkStatus());
    metrics_.dismissed = registry_.AddCounter("dismissed", "");
    metrics_.revoked = registry_.AddCounter("revoked", "");
    metrics_.registrations_refused = registry_.AddCounter("registrations_refused", "");
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()), 0);
    peer_.emplace(Fd(fds[0]));
    session_.emplace(kId, Fd(fds[1]), &poll_, &memories_, &metrics_);
  }
  ~ShmSessionTest() override { session_.reset(); }
  // With the Welcome, which the client has read.
  SessionPeer::Message Begin() {
    EXPECT_EQ(session_->Begin(store_, getpid()), OkStatus());
    return Next();
  }
  SessionPeer::Message Next() {
    auto message = peer_->Next();
    EXPECT_TRUE(message.has_value());
    return message ? *std::move(message) : SessionPeer::Message();
  }
  SessionPeer::Message Ask(SessionOp op, uint64_t id) {
    peer_->Send(op, id);
    EXPECT_TRUE(session_->OnReadable());
    return Next();
  }
  std::vector<uint32_t> Segments() {
    std::vector<uint32_t> ids = store_->objects().slabs().SegmentIds();
    std::ranges::sort(ids);
    return ids;
  }
  // The one that the value is in.
  void TakeSegmentAway() {
    EXPECT_TRUE(store_->Remove("key"));
    auto taken = store_->objects().slabs().TakeEmpty(0);
    EXPECT_EQ(taken.size(), 1u);
    for (auto& segment : taken) pool_->Release(std::move(segment));
  }
  // What epoll reports at once.
  std::vector<uint64_t> Reported() {
    std::array<epoll_event, 8> events;
    const int ready = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
    std::vector<uint64_t> tags;
    tags.reserve(events.size());
    for (int i = 0; i < ready; ++i) tags.push_back(events[static_cast<size_t>(i)].data.u64);
    return tags;
  }

  MetricsRegistry registry_;
  ShmMetrics metrics_;
  Fd poll_{epoll_create1(EPOLL_CLOEXEC)};
  RegisteredMemories memories_{kMiB, registry_.AddGauge("registered", "")};
  std::optional<SessionPeer> peer_;
  std::optional<ShmSession> session_;
};

TEST_F(ShmSessionTest, TheWelcomeSaysWhoTheClientIsAndWhatItMayPin) {
  const SessionPeer::Message welcome = Begin();
  EXPECT_EQ(welcome.status(), WireStatus::kOk);
  EXPECT_EQ(welcome.fds.size(), 2u);
  EXPECT_EQ(welcome.message.id, kId);
  EXPECT_NE(welcome.message.secret, 0u);
  EXPECT_EQ(welcome.message.bytes, store_->pin_bytes_max());
  EXPECT_TRUE(Reported().empty());
  peer_->Send(SessionOp::kSegment, 1);
  EXPECT_EQ(Reported(), std::vector{ShmSession::SocketTag(kId)});
}

TEST_F(ShmSessionTest, ARefusalSaysWhy) {
  session_->Refuse(Error(StatusCode::kFailedPrecondition, "no such namespace"));
  const SessionPeer::Message refusal = Next();
  EXPECT_EQ(refusal.status(), WireStatus::kStaleNamespace);
  EXPECT_STREQ(refusal.message.text.data(), "no such namespace");
  EXPECT_TRUE(refusal.fds.empty());
}

TEST_F(ShmSessionTest, SegmentsAndTablesThatAreThereAreGiven) {
  (void)Begin();
  store_->MaintainShared();
  const SessionPeer::Message segment = Ask(SessionOp::kSegment, Segments().at(0));
  EXPECT_EQ(segment.status(), WireStatus::kOk);
  EXPECT_EQ(segment.fds.size(), 1u);
  EXPECT_EQ(segment.message.bytes, 2 * kMiB);
  EXPECT_EQ(Ask(SessionOp::kTable, 1).status(), WireStatus::kOk);
  EXPECT_EQ(Ask(SessionOp::kTable, 99).status(), WireStatus::kMiss);
  EXPECT_EQ(Ask(SessionOp::kSegment, Segments().at(0) + (uint64_t{1} << 32)).status(),
            WireStatus::kMiss);
}

TEST_F(ShmSessionTest, NonsenseSendsTheClientAwayAndItsViewsStay) {
  (void)Begin();
  peer_->Send(static_cast<SessionOp>(99), 1);
  EXPECT_TRUE(session_->OnReadable()) << "until it hangs up";
  EXPECT_FALSE(peer_->Next().has_value());
  EXPECT_EQ(metrics_.dismissed.value(), 1);
  peer_->Send(SessionOp::kSegment, Segments().at(0));
  EXPECT_TRUE(session_->OnReadable());
  EXPECT_FALSE(peer_->Next().has_value()) << "nothing is answered any more";
  peer_->HangUp();
  EXPECT_FALSE(session_->OnReadable());
}

TEST_F(ShmSessionTest, OneThatReadsSlowlyIsNotReadFromUntilItsAnswerHasGoneOut) {
  (void)Begin();
  int asked = 0;
  for (; !session_->has_unsent() && asked < 100'000; ++asked) {
    peer_->Send(SessionOp::kSegment, 99);
    EXPECT_TRUE(session_->OnReadable());
  }
  ASSERT_TRUE(session_->has_unsent());
  peer_->Send(SessionOp::kSegment, 98);
  EXPECT_TRUE(Reported().empty());
  session_->SendUnsent();
  EXPECT_TRUE(session_->has_unsent()) << "there is no room yet";
  for (int i = 0; i < asked - 1; ++i) EXPECT_EQ(Next().message.id, 99u);
  session_->SendUnsent();
  EXPECT_FALSE(session_->has_unsent());
  EXPECT_EQ(Next().message.id, 99u);
  EXPECT_EQ(Reported(), std::vector{ShmSession::SocketTag(kId)});
  EXPECT_TRUE(session_->OnReadable());
  EXPECT_EQ(Next().message.id, 98u);
}

TEST_F(ShmSessionTest, ASegmentThatIsGoneIsCalledBackOnceAndCountsUntilItIsDropped) {
  (void)Begin();
  const uint32_t id = Segments().at(0);
  ASSERT_EQ(Ask(SessionOp::kSegment, id).status(), WireStatus::kOk);
  const TimePoint now = clock_.Now();
  const auto kept = [&](TimePoint at) {
    std::map<uint32_t, uint64_t> segments;
    session_->AddKept(at, std::chrono::seconds(1), &segments);
    return segments;
  };
  session_->CallBack(now);
  EXPECT_TRUE(kept(now + std::chrono::seconds(5)).empty()) << "it is there";
  TakeSegmentAway();
  session_->CallBack(now);
  const SessionPeer::Message notice = Next();
  EXPECT_EQ(notice.message.op, SessionOp::kSegmentGone);
  EXPECT_EQ(notice.message.id, id);
  session_->CallBack(now + std::chrono::seconds(1));
  EXPECT_TRUE(kept(now).empty()) << "it has some time";
  EXPECT_EQ(kept(now + std::chrono::seconds(1)), (std::map<uint32_t, uint64_t>{{id, 2 * kMiB}}));
  peer_->Send(SessionOp::kSegmentDropped, id);
  EXPECT_TRUE(session_->OnReadable());
  EXPECT_TRUE(kept(now + std::chrono::seconds(1)).empty());
}

TEST_F(ShmSessionTest, OneThatHasNotLookedForVeryLongFindsOutWhatIsGoneAllTheSame) {
  (void)Begin();
  const uint32_t id = Segments().at(0);
  ASSERT_EQ(Ask(SessionOp::kSegment, id).status(), WireStatus::kOk);
  ASSERT_EQ(Ask(SessionOp::kSegment, id).status(), WireStatus::kOk) << "counts once";
  TakeSegmentAway();
  SlabPool& slabs = store_->objects().slabs();
  for (uint64_t i = 0; i < SlabPool::kLeftMax; ++i) {  // more than are remembered
    auto passing = std::make_unique<Segment>();
    passing->id = 1000 + static_cast<uint32_t>(i);
    passing->memory = std::move(fabric::ShmSegment::CreateSparse(2 * kMiB)).value();
    slabs.Add(std::move(passing));
    ASSERT_EQ(slabs.TakeEmpty(0).size(), 1u);
  }
  session_->CallBack(clock_.Now());
  const SessionPeer::Message notice = Next();
  EXPECT_EQ(notice.message.op, SessionOp::kSegmentGone);
  EXPECT_EQ(notice.message.id, id);
  std::map<uint32_t, uint64_t> kept;
  session_->AddKept(clock_.Now(), Duration(0), &kept);
  EXPECT_EQ(kept, (std::map<uint32_t, uint64_t>{{id, 2 * kMiB}}));
}

TEST_F(ShmSessionTest, AClosedNamespaceSendsItsClientsAway) {
  (void)Begin();
  store_->Close();
  session_->CallBack(clock_.Now());
  EXPECT_FALSE(peer_->Next().has_value());
  EXPECT_EQ(metrics_.dismissed.value(), 1);
}

TEST_F(ShmSessionTest, OneThatIsRevokedHoldsNothingBackAnyMore) {
  (void)Begin();
  EXPECT_FALSE(session_->MayPinTooMuch());
  EXPECT_FALSE(session_->PinsTooMuch({{kId, store_->pin_bytes_max()}}));
  EXPECT_FALSE(session_->PinsTooMuch({{kId + 1, UINT64_MAX}}));
  EXPECT_TRUE(session_->PinsTooMuch({{kId, store_->pin_bytes_max() + 1}}));
  session_->Revoke();
  EXPECT_FALSE(peer_->Next().has_value());
  EXPECT_EQ(metrics_.revoked.value(), 1);
}

// The page is the server's: what a client counted last is there also when it was killed.
TEST_F(ShmSessionTest, WhatTheClientHasReadCountsAlsoWhenItEnds) {
  const LookupCounters lookups(&registry_);
  metrics_.lookups = &lookups;
  const SessionPeer::Message welcome = Begin();
  auto mapped = fabric::SharedPage::Map(welcome.fds.at(1), shm::kSessionBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  auto* page = reinterpret_cast<shm::SessionPage*>((*mapped)->writable_address());
  const auto counted = [&] { return lookups.For(store_->name()).Of(LookupPath::kOneSided); };
  page->read_cell_end = 2;
  page->read_cells[1].hits = 5;
  session_->CountReads();
  EXPECT_EQ(counted().hits, 5u);
  page->read_cells[1].hits = 7;
  page->read_cells[0].misses = 3;
  session_.reset();
  EXPECT_EQ(counted().hits, 7u);
  EXPECT_EQ(counted().misses, 3u);
}

TEST_F(ShmSessionTest, TheEndOfASessionLetsItsMemoryGo) {
  const SessionPeer::Message welcome = Begin();
  const Fd memory(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string two_pages(8192, 'x');
  ASSERT_EQ(write(memory.get(), two_pages.data(), two_pages.size()), 8192);
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | fabric::kSealFutureWrite), 0);
  peer_->Send(SessionOp::kRegister, 0, 4096, memory.get());
  ASSERT_TRUE(session_->OnReadable());
  const SessionPeer::Message taken = Next();
  ASSERT_EQ(taken.status(), WireStatus::kOk);
  EXPECT_EQ(taken.message.bytes, 4096u);
  wire::StagedValue staged;
  staged.session = kId;
  staged.secret = welcome.message.secret;
  staged.bytes = 4096;
  staged.progress_at = wire::kAllThere;
  EXPECT_TRUE(memories_.Find(staged).ok());
  peer_->Send(SessionOp::kRegister, 0, 12'288, memory.get());
  ASSERT_TRUE(session_->OnReadable());
  EXPECT_EQ(Next().status(), WireStatus::kInvalid) << "there is no more";
  EXPECT_EQ(metrics_.registrations_refused.value(), 1);
  EXPECT_TRUE(memories_.Find(staged).ok()) << "what it had stays";
  staged.bytes = 8192;
  EXPECT_FALSE(memories_.Find(staged).ok());
  peer_->Send(SessionOp::kRegister, 0, 8192, memory.get());
  ASSERT_TRUE(session_->OnReadable());
  EXPECT_EQ(Next().message.bytes, 8192u);
  EXPECT_TRUE(memories_.Find(staged).ok());
  session_.reset();
  EXPECT_FALSE(memories_.Find(staged).ok());
}

}  // namespace
}  // namespace ems::server
