// What must hold: a client gets read-only descriptors of its own namespace and nothing else;
// whatever it says or does ends its session at worst; what it held is free when it goes.
#include "mp_server/shm/shm_service.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/thread_pool.h"
#include "fabric/net/fd_message.h"
#include "fabric/shm/shm_transport.h"
#include "mp_server/store/namespace_store.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/mp_server/shm/session_peer.h"
#include "tests/mp_server/shm/shared_reader.h"
#include "tests/mp_server/store/memory_fixture.h"
#include "tests/support/eventually.h"

namespace ems::server {
namespace {

using fabric::Fd;
using shm::SessionOp;
using testing::Eventually;
using wire::WireStatus;

constexpr NamespaceRef kNs{NamespaceId(1), 3};
constexpr NamespaceRef kOther{NamespaceId(2), 1};

class ShmServiceTest : public ::testing::Test {
 protected:
  ShmServiceTest() : pool_(SmallPool(32 * kMiB)) {
    EXPECT_TRUE(pool_.WaitReady(32 * kMiB, Soon()).ok());
    ObjectStore::Options options;
    options.pool = &pool_;
    store_ = std::make_unique<ObjectStore>(options);
    NamespaceTable table;
    table.version = 1;
    for (const NamespaceRef ref : {kNs, kOther}) {
      NamespaceInfo info;
      info.ref = ref;
      info.name = "ns" + std::to_string(ref.id.value());
      table.by_id[ref.id] = info;
    }
    table_ = table;
    store_->SetNamespaces(table, 1.0);
    store_->SetOwnedSlots(AllSlots());
  }
  void Start(ShmService::Options options = {}) {
    options.store = store_.get();
    options.pool = &pool_;
    metrics_.sessions = registry_.AddGauge("sessions", "");
    metrics_.refused = registry_.AddCounter("refused", "");
    metrics_.revoked = registry_.AddCounter("revoked", "");
    metrics_.attached = registry_.AddCounter("attached", "");
    metrics_.dismissed = registry_.AddCounter("dismissed", "");
    metrics_.registrations_refused = registry_.AddCounter("registrations_refused", "");
    metrics_.registered_bytes = registry_.AddGauge("registered", "");
    metrics_.round_seconds = registry_.AddGauge("round_seconds", "");
    auto started = ShmService::Start(options, metrics_);
    ASSERT_TRUE(started.ok()) << started.status();
    service_ = *std::move(started);
  }
  SessionPeer Connect(NamespaceRef ns = kNs, std::string token = {}) {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    service_->Adopt(Fd(fds[1]), ns, std::move(token));
    return SessionPeer(Fd(fds[0]));
  }
  void Put(NamespaceRef ns, std::string_view key, std::string_view value) {
    auto room = store_->Reserve(ns, SlotId(0), key, value.size());
    ASSERT_TRUE(room.ok()) << room.status();
    Fill(*room, value);
    const uint64_t checksum = CombinePieces(room->piece_sums());
    bool stored = false;
    ASSERT_TRUE(store_->Publish(*std::move(room), checksum, {}, &stored).ok());
  }
  // Memory that a client was told to drop counts at once.
  void StartWithoutPatience() {
    ShmService::Options options;
    options.drop_patience = Duration(0);
    Start(options);
  }
  // Reads the Welcome and asks for segments until one is given; its number.
  static uint64_t TakeSegment(SessionPeer* peer) {
    EXPECT_TRUE(peer->Next().has_value());
    uint64_t id = 1;
    while (id < 100 && peer->Ask(SessionOp::kSegment, id)->status() != WireStatus::kOk) ++id;
    EXPECT_LT(id, 100u);
    return id;
  }
  uint64_t RetiredBytes() { return store_->Usage()[0].retired_bytes; }
  static Fd Memory(uint64_t bytes, int seals) {
    Fd fd(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::string pages(bytes, 'x');
    EXPECT_EQ(write(fd.get(), pages.data(), bytes), static_cast<ssize_t>(bytes));
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  }

  SegmentPool pool_;
  NamespaceTable table_;
  std::unique_ptr<ObjectStore> store_;
  MetricsRegistry registry_;
  ShmMetrics metrics_;
  std::unique_ptr<ShmService> service_;
};

TEST_F(ShmServiceTest, AClientReadsWhatWasPut) {
  Start();
  Put(kNs, "key", "the value");
  SessionPeer peer = Connect();
  const auto welcome = peer.Next();
  ASSERT_TRUE(welcome.has_value());
  ASSERT_EQ(welcome->status(), WireStatus::kOk) << welcome->message.text.data();
  ASSERT_EQ(welcome->fds.size(), 2u);
  EXPECT_EQ(welcome->message.bytes, 16 * kMiB) << "half of the pool";
  const Mapping control(welcome->fds[0], shm::kControlBytes);
  const auto& words = control.as<const shm::ControlPage>()->shards;
  (void)store_->EvictToWatermark();  // makes the index
  const Hash128 hash = KeyHash("key");
  const uint64_t table_id = shm::TableOf(words[shm::ShardOf(hash)].load());
  const auto table = peer.Ask(SessionOp::kTable, table_id);
  ASSERT_TRUE(table.has_value() && table->fds.size() == 1);
  const auto entry = LookUp(Mapping(table->fds[0], table->message.bytes), hash);
  ASSERT_TRUE(entry.has_value());
  const auto segment = peer.Ask(SessionOp::kSegment, shm::SegmentOf(entry->location));
  ASSERT_TRUE(segment.has_value() && segment->fds.size() == 1);
  EXPECT_EQ(segment->status(), WireStatus::kOk);
  const Mapping memory(segment->fds[0], segment->message.bytes);
  const auto* header =
      reinterpret_cast<const ObjectHeader*>(memory.data() + shm::OffsetOf(entry->location));
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(header) + header->payload_offset,
                             header->payload_bytes),
            "the value");
}

TEST_F(ShmServiceTest, NoDescriptorCanBeWrittenButTheSessionPage) {
  Start();
  Put(kNs, "key", "the value");
  (void)store_->EvictToWatermark();
  SessionPeer peer = Connect();
  auto welcome = peer.Next();
  ASSERT_TRUE(welcome.has_value() && welcome->fds.size() == 2);
  (void)store_->EvictToWatermark();
  std::vector<Fd> given;
  given.push_back(std::move(welcome->fds[0]));
  for (const auto& [op, id] :
       {std::pair{SessionOp::kTable, 1}, std::pair{SessionOp::kSegment, 1}}) {
    auto answer = peer.Ask(op, static_cast<uint64_t>(id));
    ASSERT_TRUE(answer.has_value() && answer->fds.size() == 1) << id;
    given.push_back(std::move(answer->fds[0]));
  }
  for (const Fd& fd : given) {
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    EXPECT_NE(ftruncate(fd.get(), 0), 0);
    EXPECT_NE(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  }
  const Mapping page(welcome->fds[1], shm::kSessionBytes, true);
  page.as<shm::SessionPage>()->hazard_end = 1;
  EXPECT_NE(ftruncate(welcome->fds[1].get(), 0), 0);
}

TEST_F(ShmServiceTest, WhatIsNotOfItsNamespaceIsNotGiven) {
  Start();
  Put(kNs, "key", "mine");
  Put(kOther, "key", "not yours");
  SessionPeer peer = Connect(kNs);
  ASSERT_TRUE(peer.Next().has_value());
  int given = 0;
  for (uint64_t id : {0u, 1u, 2u, 3u, 4u, 5u, 1'000'000u}) {
    const auto answer = peer.Ask(SessionOp::kSegment, id);
    ASSERT_TRUE(answer.has_value());
    if (answer->status() != WireStatus::kOk) {
      EXPECT_EQ(answer->status(), WireStatus::kMiss);
      EXPECT_TRUE(answer->fds.empty());
      continue;
    }
    ++given;
    const Mapping memory(answer->fds[0], answer->message.bytes);
    EXPECT_EQ(memmem(memory.data(), memory.size(), "not yours", 9), nullptr);
  }
  EXPECT_EQ(given, 1);
  EXPECT_EQ(peer.Ask(SessionOp::kSegment, (uint64_t{1} << 32) + 1)->status(), WireStatus::kMiss);
  // Tables are numbered by namespace, so the number of the other's names this one's own.
  SessionPeer neighbour = Connect(kOther);
  ASSERT_TRUE(neighbour.Next().has_value());
  for (const NamespaceRef ns : {kNs, kOther}) (*store_->Share(ns))->MaintainShared();
  const auto own = peer.Ask(SessionOp::kTable, 1), other = neighbour.Ask(SessionOp::kTable, 1);
  ASSERT_EQ(own->status(), WireStatus::kOk);
  ASSERT_EQ(other->status(), WireStatus::kOk);
  const auto mine = LookUp(Mapping(own->fds[0], own->message.bytes), KeyHash("key"));
  const auto theirs = LookUp(Mapping(other->fds[0], other->message.bytes), KeyHash("key"));
  ASSERT_TRUE(mine.has_value() && theirs.has_value());
  EXPECT_NE(mine->location, theirs->location);
  EXPECT_NE(shm::SegmentOf(mine->location), shm::SegmentOf(theirs->location));
  EXPECT_EQ(peer.Ask(SessionOp::kSegment, shm::SegmentOf(theirs->location))->status(),
            WireStatus::kMiss);
  EXPECT_EQ(peer.Ask(SessionOp::kTable, 2)->status(), WireStatus::kMiss);
}

TEST_F(ShmServiceTest, AnUnknownNamespaceUserOrOneTooManyIsToldWhy) {
  ShmService::Options options;
  options.sessions_max = 1;
  Start(options);
  SessionPeer unknown = Connect({NamespaceId(1), 2});
  EXPECT_EQ(unknown.Next()->status(), WireStatus::kStaleNamespace);
  EXPECT_FALSE(unknown.Next().has_value());
  SessionPeer first = Connect();
  EXPECT_EQ(first.Next()->status(), WireStatus::kOk);
  SessionPeer second = Connect();
  const auto refusal = second.Next();
  EXPECT_EQ(refusal->status(), WireStatus::kRetryLater);
  EXPECT_NE(std::string_view(refusal->message.text.data()).find("shm.sessions_max"),
            std::string_view::npos);
  first.HangUp();
  EXPECT_TRUE(Eventually([&] { return metrics_.sessions.value() == 0; }));
  SessionPeer third = Connect();
  EXPECT_EQ(third.Next()->status(), WireStatus::kOk);
}

TEST_F(ShmServiceTest, OnlyTheUsersNamedMayAttach) {
  ShmService::Options options;
  options.uids = {geteuid() + 1};
  Start(options);
  SessionPeer peer = Connect();
  const auto refusal = peer.Next();
  EXPECT_EQ(refusal->status(), WireStatus::kInvalid);
  EXPECT_NE(std::string_view(refusal->message.text.data()).find("shm.uids"),
            std::string_view::npos);
}

TEST_F(ShmServiceTest, WithATokenFileOnlyTheNamespacesTokenLetsAClientIn) {
  const controller::TempDir folder;
  ShmService::Options options;
  options.token_file = folder.path() + "/tokens";
  ShmService::Options missing = options;
  missing.store = store_.get();
  missing.pool = &pool_;
  EXPECT_EQ(ShmService::Start(missing, metrics_).status().code(), StatusCode::kNotFound);
  std::ofstream(options.token_file) << "ns1 mine\nns2 theirs\n";
  Start(options);
  for (const std::string wrong : {"", "theirs", "min"}) {
    SessionPeer peer = Connect(kNs, wrong);
    const auto refusal = peer.Next();
    EXPECT_EQ(refusal->status(), WireStatus::kInvalid) << wrong;
    EXPECT_TRUE(refusal->fds.empty()) << wrong;
    EXPECT_NE(std::string_view(refusal->message.text.data()).find("shm_token"),
              std::string_view::npos);
  }
  EXPECT_EQ(Connect(kNs, "mine").Next()->status(), WireStatus::kOk);
  // A new token counts at once, and a file that is gone lets nobody in.
  std::ofstream(options.token_file) << "ns1 renewed\n";
  EXPECT_EQ(Connect(kNs, "mine").Next()->status(), WireStatus::kInvalid);
  EXPECT_EQ(Connect(kNs, "renewed").Next()->status(), WireStatus::kOk);
  std::filesystem::remove(options.token_file);
  EXPECT_EQ(Connect(kNs, "renewed").Next()->status(), WireStatus::kInvalid);
}

TEST_F(ShmServiceTest, NonsenseEndsTheSessionAndNoOther) {
  Start();
  SessionPeer good = Connect();
  ASSERT_TRUE(good.Next().has_value());
  for (const uint32_t op : {0u, 1u, 5u, 77u, 0xffffffffu}) {
    SessionPeer bad = Connect();
    ASSERT_TRUE(bad.Next().has_value());
    bad.Send(static_cast<SessionOp>(op), 1);
    EXPECT_FALSE(bad.Next().has_value()) << op;
  }
  EXPECT_EQ(good.Ask(SessionOp::kTable, 99)->status(), WireStatus::kMiss);
  EXPECT_EQ(metrics_.dismissed.value(), 5);
  EXPECT_TRUE(Eventually([&] { return metrics_.sessions.value() == 1; }));
}

TEST_F(ShmServiceTest, WhatAClientHeldIsFreeWhenItHangsUp) {
  Start();
  Put(kNs, "key", std::string(100'000, 'x'));
  SessionPeer peer = Connect();
  auto welcome = peer.Next();
  ASSERT_TRUE(welcome.has_value() && welcome->fds.size() == 2);
  (void)store_->EvictToWatermark();
  const Mapping page(welcome->fds[1], shm::kSessionBytes, true);
  const auto table = peer.Ask(SessionOp::kTable, 1);
  ASSERT_TRUE(table.has_value() && table->fds.size() == 1);
  const auto entry = LookUp(Mapping(table->fds[0], table->message.bytes), KeyHash("key"));
  ASSERT_TRUE(entry.has_value());
  auto* session = page.as<shm::SessionPage>();
  session->hazard_end = 1;
  session->hazards[0] = entry->generation_tag;
  EXPECT_TRUE(store_->Remove(kNs, "key"));
  EXPECT_GE(RetiredBytes(), 100'000u);
  peer.HangUp();
  EXPECT_TRUE(Eventually([&] { return RetiredBytes() == 0; }));
  EXPECT_EQ(store_->Usage()[0].value_bytes, 0u);
}

TEST_F(ShmServiceTest, AClientThatPinsTooMuchLosesItsSession) {
  table_.by_id[kNs.id].dram_quota_bytes = 4 * kMiB;  // so that views may pin 2 MiB
  table_.version = 2;
  store_->SetNamespaces(table_, 1.0);
  Start();
  SessionPeer peer = Connect();
  auto welcome = peer.Next();
  ASSERT_TRUE(welcome.has_value() && welcome->fds.size() == 2);
  EXPECT_EQ(welcome->message.bytes, 2 * kMiB);
  const Mapping page(welcome->fds[1], shm::kSessionBytes, true);
  (void)store_->EvictToWatermark();
  const auto table = peer.Ask(SessionOp::kTable, 1);
  ASSERT_TRUE(table.has_value() && table->fds.size() == 1);
  const Mapping index(table->fds[0], table->message.bytes);
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string key = "k" + std::to_string(i);
    Put(kNs, key, std::string(kMiB, 'x'));
    const auto entry = LookUp(index, KeyHash(key));
    ASSERT_TRUE(entry.has_value());
    page.as<shm::SessionPage>()->hazards[i] = entry->generation_tag;
    page.as<shm::SessionPage>()->hazard_end = i + 1;
  }
  for (uint32_t i = 0; i < 3; ++i) store_->Remove(kNs, "k" + std::to_string(i));
  while (peer.Next().has_value()) {  // notices, then the end
  }
  EXPECT_EQ(metrics_.revoked.value(), 1);
  EXPECT_TRUE(Eventually([&] { return RetiredBytes() == 0; }));
}

TEST_F(ShmServiceTest, SegmentsThatAreGoneAreCalledBackAndCountUntilTheyAreDropped) {
  StartWithoutPatience();
  Put(kNs, "key", "value");
  SessionPeer peer = Connect();
  const uint64_t id = TakeSegment(&peer);
  store_->Remove(kNs, "key");
  auto shared = store_->Share(kNs);
  ASSERT_TRUE(shared.ok());
  (*shared)->objects().ReleaseEmpty(0);
  const auto notice = peer.Next();
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(notice->message.op, SessionOp::kSegmentGone);
  EXPECT_EQ(notice->message.id, id);
  const auto kept = [&] { return pool_.stats().bytes_kept; };
  EXPECT_TRUE(Eventually([&] { return kept() > 0; }));
  const uint64_t room = pool_.bytes_max() - kept();
  EXPECT_TRUE(Eventually([&] { return pool_.stats().bytes_created == room; })) << "nothing more";
  peer.Send(SessionOp::kSegmentDropped, id);
  EXPECT_TRUE(Eventually([&] { return kept() == 0; }));
  EXPECT_TRUE(Eventually([&] { return pool_.stats().bytes_created == pool_.bytes_max(); }));
}

TEST_F(ShmServiceTest, WhatASessionThatWasToldToGoKeepsCountsToo) {
  StartWithoutPatience();
  Put(kNs, "key", "value");
  SessionPeer peer = Connect();
  const uint64_t id = TakeSegment(&peer);
  peer.Send(SessionOp::kSegmentDropped, id);  // not yet: it was not called back
  table_.by_id.erase(kNs.id);
  table_.version = 2;
  store_->SetNamespaces(table_, 1.0);
  while (peer.Next().has_value()) {  // notices, then the end
  }
  EXPECT_TRUE(Eventually([&] { return pool_.stats().bytes_kept > 0; }));
  peer.HangUp();
  EXPECT_TRUE(Eventually([&] { return pool_.stats().bytes_kept == 0; }));
}

TEST_F(ShmServiceTest, ADeletedNamespaceEndsItsSessions) {
  Start();
  SessionPeer peer = Connect();
  ASSERT_TRUE(peer.Next().has_value());
  table_.by_id.erase(kNs.id);
  table_.version = 2;
  store_->SetNamespaces(table_, 1.0);
  EXPECT_FALSE(peer.Next().has_value());
}

TEST_F(ShmServiceTest, TouchesMoveTheUseOfObjects) {
  Start();
  Put(kNs, "old", std::string(1000, 'x'));
  Put(kNs, "young", std::string(1000, 'x'));
  SessionPeer peer = Connect();
  auto welcome = peer.Next();
  ASSERT_TRUE(welcome.has_value() && welcome->fds.size() == 2);
  const Mapping page(welcome->fds[1], shm::kSessionBytes, true);
  auto* session = page.as<shm::SessionPage>();
  const Hash128 hash = KeyHash("old");
  session->touches[0].hash_lo = hash.lo;
  session->touches[0].hash_hi = hash.hi;
  session->touch_count = 1;
  ASSERT_TRUE(Eventually([&] { return store_->Usage()[0].touches == 1; }));
  // A touch is counted just before it is applied. One thread takes them in order, so once the
  // second is counted the first has been applied.
  session->touches[1].hash_lo = 12345;  // of nothing
  session->touch_count = 2;
  ASSERT_TRUE(Eventually([&] { return store_->Usage()[0].touches == 2; }));
  auto shared = store_->Share(kNs);
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ((*shared)->room().EvictColdest(1, 1), 1u);
  EXPECT_TRUE(store_->Find(kNs, "old", false).has_value());
  EXPECT_FALSE(store_->Find(kNs, "young", false).has_value());
  session->touch_count = UINT64_MAX;  // hostile: bounded
  EXPECT_TRUE(Eventually([&] { return store_->Usage()[0].touches >= shm::kTouchesMax; }));
}

TEST_F(ShmServiceTest, SaysHowLongTheLookAtAllSessionsTakes) {
  Start();
  SessionPeer peer = Connect();
  ASSERT_TRUE(peer.Next().has_value());
  EXPECT_TRUE(Eventually([&] { return metrics_.round_seconds.value() > 0; }));
}

TEST_F(ShmServiceTest, OnlySealedMemoryOfTheStatedSizeIsRegistered) {
  ShmService::Options options;
  options.registered_bytes_max = 10 * kMiB;
  Start(options);
  SessionPeer peer = Connect();
  const auto welcome = peer.Next();
  ASSERT_TRUE(welcome.has_value());
  const uint64_t id = welcome->message.id, secret = welcome->message.secret;
  const auto staged = [&](uint64_t key, uint64_t offset, uint64_t bytes,
                          uint64_t progress = wire::kAllThere) {
    return service_->Staged(
        {.session = id, .secret = key, .offset = offset, .bytes = bytes, .progress_at = progress});
  };
  EXPECT_EQ(staged(secret, 0, 1).status().code(), StatusCode::kInvalidArgument);
  const Fd loose = Memory(kMiB, 0);
  const Fd large = Memory(11 * kMiB, F_SEAL_SHRINK | fabric::kSealFutureWrite);
  const auto memory = fabric::SharedMemory::Create("client", kMiB);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE((*memory)->Populate(0, kMiB).ok());
  const Fd sealed(dup((*memory)->fd()));
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, kMiB)->status(), WireStatus::kInvalid);
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, kMiB, loose.get())->status(), WireStatus::kInvalid);
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, 2 * kMiB, sealed.get())->status(),
            WireStatus::kInvalid);
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, 0, sealed.get())->status(), WireStatus::kInvalid);
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, kMiB, peer.fd())->status(), WireStatus::kInvalid);
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, 11 * kMiB, large.get())->status(),
            WireStatus::kRetryLater);
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, kMiB, sealed.get())->status(), WireStatus::kOk);
  EXPECT_EQ(peer.Ask(SessionOp::kRegister, 0, kMiB, loose.get())->status(), WireStatus::kInvalid);
  EXPECT_EQ(metrics_.registrations_refused.value(), 7);
  std::memcpy((*memory)->bytes().data() + 100, "hello", 5);
  const auto bytes = staged(secret, 100, 5);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(AsText(bytes->bytes), "hello");
  EXPECT_FALSE(staged(secret + 1, 100, 5).ok());
  EXPECT_FALSE(staged(secret, kMiB, 1).ok());
  EXPECT_FALSE(staged(secret, 1, UINT64_MAX).ok());
  EXPECT_TRUE(staged(secret, kMiB, 0).ok());
  const auto growing = staged(secret, 100, 5, 8);
  ASSERT_TRUE(growing.ok()) << growing.status();
  EXPECT_EQ(growing->progress->load(), 0u);
  EXPECT_FALSE(staged(secret, 100, 5, 9).ok()) << "not a whole word";
  EXPECT_FALSE(staged(secret, 100, 5, kMiB).ok());
  peer.HangUp();
  EXPECT_TRUE(Eventually([&] { return !staged(secret, 0, 1).ok(); }));
  EXPECT_EQ(AsText(bytes->bytes), "hello") << "mapped as long as a copy runs";
}

// Another user that has got hold of the descriptors, as a client of a container has.
TEST_F(ShmServiceTest, AnotherUserCanNeitherWriteReopenTruncateNorPunch) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Start();
  Put(kNs, "key", "the value");
  SessionPeer peer = Connect();
  const auto welcome = peer.Next();
  ASSERT_TRUE(welcome.has_value() && welcome->fds.size() == 2);
  (void)store_->EvictToWatermark();
  const auto table = peer.Ask(SessionOp::kTable, 1);
  ASSERT_TRUE(table.has_value() && table->fds.size() == 1);
  uint64_t id = 0;
  std::optional<SessionPeer::Message> segment;
  do {
    segment = peer.Ask(SessionOp::kSegment, ++id);
  } while (segment->status() != WireStatus::kOk && id < 100);
  ASSERT_EQ(segment->fds.size(), 1u);
  for (const int fd : {welcome->fds[0].get(), table->fds[0].get(), segment->fds[0].get()}) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // system calls only
      constexpr uid_t kNobody = 65534;
      if (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0)
        _exit(100);
      int went_through = 0;
      if (open(path.c_str(), O_RDWR) >= 0) went_through |= 1;
      if (pwrite(fd, "EVIL", 4, 0) > 0) went_through |= 2;
      if (mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) went_through |= 4;
      void* map = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
      if (map == MAP_FAILED) _exit(101);
      if (mprotect(map, 4096, PROT_READ | PROT_WRITE) == 0) went_through |= 8;
      if (ftruncate(fd, 0) == 0) went_through |= 16;
      if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0)
        went_through |= 32;
      _exit(went_through);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "bits of what went through";
  }
}

TEST_F(ShmServiceTest, AHostilePageHarmsOnlyItsClient) {
  Start();
  SessionPeer good = Connect();
  ASSERT_TRUE(good.Next().has_value());
  SessionPeer bad = Connect();
  const auto welcome = bad.Next();
  ASSERT_TRUE(welcome.has_value() && welcome->fds.size() == 2);
  (void)store_->EvictToWatermark();
  const Mapping page(welcome->fds[1], shm::kSessionBytes, true);
  auto shared = store_->Share(kNs);
  ASSERT_TRUE(shared.ok());
  std::atomic<bool> stop{false};
  Thread scribbler("scribbler", [&] {
    std::mt19937_64 random(1);
    auto* words = page.as<std::atomic<uint64_t>>();
    while (!stop.load()) {
      // Every other word names an object that is there or about to be: each Reserve takes the next
      // generation.
      const uint64_t near = (*shared)->newest_generation() + random() % 16 - 8;
      const uint64_t word = random() % 2 == 0 ? random() : near << 8;
      words[random() % (shm::kSessionBytes / 8)].store(word, std::memory_order_relaxed);
    }
  });
  uint64_t retired_most = 0;
  const Deadline patience = Soon();
  for (int i = 0; i < 3000 || (retired_most == 0 && !patience.Passed()); ++i) {
    const std::string key = "key" + std::to_string(i % 100);
    Put(kNs, key, key + key);
    ASSERT_EQ(AsText(store_->Get(kNs, key, true).value()), key + key);
    if (i % 3 == 0) store_->Remove(kNs, key);
    retired_most = std::max(retired_most, RetiredBytes());
    if (i % 100 == 0) store_->EvictToWatermark();
  }
  stop.store(true);
  scribbler.Join();
  EXPECT_GT(retired_most, 0u) << "no word ever named an object: nothing was tested";
  EXPECT_EQ(good.Ask(SessionOp::kTable, 99)->status(), WireStatus::kMiss);
  bad.HangUp();
  EXPECT_TRUE(Eventually([&] { return metrics_.sessions.value() == 1 && RetiredBytes() == 0; }));
  EXPECT_EQ(store_->Usage()[0].value_bytes, store_->Usage()[0].linked_bytes);
}

}  // namespace
}  // namespace ems::server
