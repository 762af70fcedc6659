// What must hold: what each op of the data plane answers, for each state of ownership, lease,
// namespace and store; ranges verify wherever they are cut.
#include "mp_server/data_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "tests/support/eventually.h"
#include "tests/support/self_verifying.h"

namespace ems::server {
namespace {

using fabric::Answer;
using fabric::Outcome;
using fabric::Session;
using std::chrono::seconds;
using testing::MakeValue;
using wire::Op;
using wire::WireStatus;

constexpr NamespaceRef kNs{NamespaceId(1), 3};
constexpr SlotId kSlot(11);

std::shared_ptr<const DhtView> MakeView(ViewVersion version, uint32_t owner,
                                        const std::vector<uint32_t>& live) {
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(owner));
  std::vector<NodeInfo> nodes(live.size());
  for (size_t i = 0; i < live.size(); ++i) nodes[i].id = NodeId(live[i]);
  return *DhtView::Make(version, nodes, slots, false);
}

class DataServiceTest : public ::testing::Test {
 protected:
  DataServiceTest() {
    SegmentPool::Options pool;
    pool.bytes = 16 * kMiB;
    pool.segment_bytes = 2 * kMiB;
    pool.huge_pages = HugePages::kOff;
    pool_ = std::make_unique<SegmentPool>(pool);
    EXPECT_TRUE(pool_->WaitReady(pool.bytes, Deadline::After(seconds(20))).ok());
    ObjectStore::Options options;
    options.pool = pool_.get();
    store_ = std::make_unique<ObjectStore>(options);
    NamespaceTable table;
    table.version = 1;
    NamespaceInfo info;
    info.ref = kNs;
    info.name = "kv";
    table.by_id[kNs.id] = info;
    store_->SetNamespaces(table, 1.0);
    ownership_.SetSelf(NodeId(1));
    ownership_.SetActive(1000);  // nobody else has the slots
    Own(1);
    ownership_.RenewLease(clock_.Now() + seconds(100));
    tiered_ = std::make_unique<TieredStore>(store_.get(), nullptr);
    service_ = std::make_unique<DataService>(tiered_.get(), &ownership_, &metrics_, 55, 8 * kMiB,
                                             [] { return std::string("{\"a\":1}"); });
    session_ = service_->NewSession();
  }
  // All slots belong to `owner` in the next view.
  void Own(uint32_t owner) {
    store_->SetOwnedSlots(ownership_.Install(*MakeView({1, ++epoch_}, owner, {1, 2})));
    ownership_.Settle();
  }
  wire::FrameHeader Header(Op op, uint16_t flags = 0) const {
    wire::FrameHeader header;
    header.op = op;
    header.flags = flags;
    header.namespace_id = kNs.id.value();
    header.namespace_generation = kNs.generation;
    header.view = ViewVersion(1, epoch_).packed();
    header.slot = kSlot.value();
    return header;
  }
  // The outcome without waiting, after as many turns as it takes.
  Outcome Ask(const wire::FrameHeader& header, std::string_view key, ConstBytes body = {}) {
    Outcome outcome;
    do {
      answer_.Clear();
      outcome = session_->Handle(header, key, body, &answer_);
    } while (outcome.again);
    return outcome;
  }
  WireStatus Ask(Op op, std::string_view key, uint16_t flags = 0) {
    return Ask(Header(op, flags), key).status;
  }
  // A whole Put, as the transport does it. `damage`: the sender's checksum does not match.
  WireStatus Put(const wire::FrameHeader& header, std::string_view key, std::string_view value,
                 bool damage = false) {
    fabric::PutTarget target;
    const Outcome outcome =
        session_->BeginPut({&header, key, header.slot_id(), value.size()}, &target);
    if (outcome.status != WireStatus::kOk) return outcome.status;
    PieceHasher hasher;
    hasher.Start(target.piece_sums);
    hasher.Update(AsBytes(value));
    if (!target.discard) std::memcpy(target.value.data(), value.data(), value.size());
    return session_->EndPut(hasher.Finish(), Checksum(AsBytes(value)) + (damage ? 1 : 0));
  }
  WireStatus Put(std::string_view key, std::string_view value, uint16_t flags = 0) {
    return Put(Header(Op::kPut, flags), key, value);
  }
  std::string Payload() const {
    std::string all;
    for (const ConstBytes part : answer_.payload) all += AsText(part);
    return all;
  }
  std::vector<wire::ItemResult> Multi(Op op, const std::vector<std::string>& keys,
                                      Outcome* outcome = nullptr) {
    wire::FrameHeader header = Header(op);
    header.item_count = static_cast<uint16_t>(keys.size());
    std::string body;
    for (const std::string& key : keys) {
      wire::ItemHead head;
      head.slot = kSlot.value();
      head.key_bytes = static_cast<uint16_t>(key.size());
      body += AsText(wire::RawBytes(head));
    }
    for (const std::string& key : keys) body += key;
    for (const wire::RangeBody& range : ranges_) body += AsText(wire::RawBytes(range));
    if (behind_) header.view = ViewVersion(9, 9).packed();
    const Outcome got = Ask(header, {}, AsBytes(body));
    if (outcome != nullptr) *outcome = got;
    std::vector<wire::ItemResult> results;
    for (size_t at = 0; at + sizeof(wire::ItemResult) <= answer_.body.size();
         at += sizeof(wire::ItemResult)) {
      results.push_back(wire::ReadRaw<wire::ItemResult>(ConstBytes(answer_.body).subspan(at)));
    }
    return results;
  }

  ManualClock clock_;
  MetricsRegistry registry_;
  ServerMetrics metrics_{&registry_};
  Ownership ownership_{&clock_};
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<ObjectStore> store_;
  std::unique_ptr<TieredStore> tiered_;
  std::unique_ptr<DataService> service_;
  std::unique_ptr<Session> session_;
  Answer answer_;
  std::vector<wire::RangeBody> ranges_;  // of a MultiGetRange
  uint64_t epoch_ = 0;
  bool behind_ = false;
};

TEST_F(DataServiceTest, HelloSaysWhichCluster) {
  answer_ = Answer();
  wire::FrameHeader hello;
  hello.op = Op::kHello;
  DataService service(
      tiered_.get(), &ownership_, &metrics_, 55, kMiB, [] { return ""; },
      [] { return ClusterId(0x0102030405060708); });
  (void)service.NewSession()->Handle(hello, {}, {}, &answer_);
  EXPECT_EQ(wire::ReadRaw<wire::HelloBody>(answer_.body).cluster_bits(), 0x030405060708U);
}

TEST_F(DataServiceTest, HelloPingAndStats) {
  EXPECT_EQ(Ask(Op::kHello, ""), WireStatus::kOk);
  const auto hello = wire::ReadRaw<wire::HelloBody>(answer_.body);
  EXPECT_EQ(hello.boot_id, 55U);
  EXPECT_EQ(hello.value_bytes_max, 8 * kMiB);
  EXPECT_EQ(hello.version_min, wire::kVersionMin);
  EXPECT_EQ(Ask(Op::kPing, ""), WireStatus::kOk);
  EXPECT_EQ(session_->view_version(), ViewVersion(1, 1));
  EXPECT_EQ(Ask(Op::kStats, ""), WireStatus::kOk);
  EXPECT_EQ(AsText(answer_.body), "{\"a\":1}");
}

TEST_F(DataServiceTest, PeersAreToldWhatWasHeardOfTheViewThatTheyAskFor) {
  EXPECT_EQ(Ask(Op::kPeers, ""), WireStatus::kOk);
  EXPECT_TRUE(answer_.body.empty()) << "nobody has heard anything";
  std::vector<ViewVersion> asked;
  DataService tells(tiered_.get(), &ownership_, &metrics_, 55, 8 * kMiB, {}, {},
                    [&](ViewVersion view, std::vector<std::byte>* body) {
                      asked.push_back(view);
                      body->resize(3);
                    });
  const std::unique_ptr<Session> session = tells.NewSession();
  answer_.Clear();
  EXPECT_EQ(session->Handle(Header(Op::kPeers), "", {}, &answer_).status, WireStatus::kOk);
  EXPECT_EQ(answer_.body.size(), 3U);
  EXPECT_EQ(asked, std::vector{ViewVersion(1, 1)});
}

// It could remove what was put since.
TEST_F(DataServiceTest, ARemoveThatNobodyWaitsForAnyMoreIsNotDone) {
  ASSERT_EQ(Put("k", "value"), WireStatus::kOk);
  wire::FrameHeader header = Header(Op::kRemove, wire::kFlagUntil);
  header.deadline_ms = wire::ClockMs(Clock::System().Now()) - 1;
  EXPECT_EQ(Ask(header, "k").status, WireStatus::kDeadline);
  EXPECT_EQ(Ask(Op::kExists, "k"), WireStatus::kOk);
  header.deadline_ms += 60'000;
  EXPECT_EQ(Ask(header, "k").status, WireStatus::kOk);
  EXPECT_EQ(Ask(Op::kExists, "k"), WireStatus::kMiss);
}

TEST_F(DataServiceTest, PutGetExistsRemove) {
  for (const size_t bytes : {0UL, 1UL, 4096UL, 65535UL, 65536UL, 65537UL, 1UL << 20}) {
    const std::string key = "k" + std::to_string(bytes);
    const std::string value = MakeValue("kv", key, 1, bytes);
    EXPECT_EQ(Ask(Op::kGet, key), WireStatus::kMiss);
    EXPECT_EQ(Put(key, value), WireStatus::kOk) << bytes;
    EXPECT_EQ(Ask(Op::kGet, key), WireStatus::kOk);
    EXPECT_TRUE(Payload() == value) << bytes;
    EXPECT_EQ(answer_.checksum, Checksum(AsBytes(value)));
    EXPECT_EQ(Ask(Op::kExists, key), WireStatus::kOk);
    EXPECT_EQ(answer_.checksum, bytes);
    EXPECT_EQ(Ask(Op::kRemove, key), WireStatus::kOk);
    EXPECT_EQ(Ask(Op::kRemove, key), WireStatus::kMiss);
    EXPECT_EQ(Ask(Op::kGet, key), WireStatus::kMiss);
    session_->Sent();
  }
}

TEST_F(DataServiceTest, TheSameContentAgainStoresNothingOtherContentIsRefused) {
  EXPECT_EQ(Put("k", "one"), WireStatus::kOk);
  EXPECT_EQ(Put("k", "one"), WireStatus::kOk);
  EXPECT_EQ(Put("k", "two"), WireStatus::kAlreadyExists);
  EXPECT_FALSE(session_->ErrorText().empty());
  EXPECT_EQ(Put("k", "longer"), WireStatus::kAlreadyExists);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kOk);
  EXPECT_EQ(Payload(), "one");
  session_->Sent();
  EXPECT_EQ(store_->Usage()[0].objects, 1U);
  EXPECT_EQ(store_->Usage()[0].value_bytes, 3U);
}

TEST_F(DataServiceTest, OverwriteReplacesWhileReadersKeepTheOldValue) {
  EXPECT_EQ(Put("k", "one"), WireStatus::kOk);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kOk);
  const std::unique_ptr<Session> reader = std::exchange(session_, service_->NewSession());
  EXPECT_EQ(Put("k", "twotwo", wire::kFlagOverwrite), WireStatus::kOk);
  EXPECT_EQ(Payload(), "one") << "pinned until it has been sent";
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kOk);
  EXPECT_EQ(Payload(), "twotwo");
}

TEST_F(DataServiceTest, ADamagedPutStoresNothing) {
  EXPECT_EQ(Put(Header(Op::kPut), "k", "value", true), WireStatus::kChecksumMismatch);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kMiss);
  EXPECT_EQ(Put("k", "value"), WireStatus::kOk);
  EXPECT_EQ(Put(Header(Op::kPut), "k", "value", true), WireStatus::kChecksumMismatch)
      << "nor is it taken for the same content";
}

TEST_F(DataServiceTest, AnAbortedPutGivesItsRoomBack) {
  const wire::FrameHeader header = Header(Op::kPut);
  for (int i = 0; i < 100; ++i) {  // more than the pool has, were it kept
    fabric::PutTarget target;
    ASSERT_EQ(session_->BeginPut({&header, "k", kSlot, kMiB}, &target).status, WireStatus::kOk)
        << i;
    session_->AbortPut();
  }
  EXPECT_EQ(store_->Usage()[0].value_bytes, 0U);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kMiss);
}

TEST_F(DataServiceTest, ASessionThatDiesInAPutGivesItsRoomBack) {
  const wire::FrameHeader header = Header(Op::kPut);
  fabric::PutTarget target;
  ASSERT_EQ(session_->BeginPut({&header, "k", kSlot, kMiB}, &target).status, WireStatus::kOk);
  session_.reset();
  EXPECT_EQ(store_->Usage()[0].value_bytes, 0U);
}

TEST_F(DataServiceTest, DurableOnSsdIsUnimplemented) {
  EXPECT_EQ(Put("k", "v", wire::kFlagDurableSsd), WireStatus::kUnimplemented);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kMiss);
}

TEST_F(DataServiceTest, AnUnknownNamespaceWaitsThenIsStale) {
  for (const uint32_t generation : {2U, 4U}) {
    wire::FrameHeader header = Header(Op::kGet);
    header.namespace_generation = generation;
    const Outcome outcome = Ask(header, "k");
    EXPECT_EQ(outcome.status, WireStatus::kStaleNamespace);
    EXPECT_GT(outcome.wait, Duration::zero());
    header.op = Op::kPut;
    EXPECT_EQ(Put(header, "k", "v"), WireStatus::kStaleNamespace);
  }
}

TEST_F(DataServiceTest, NotTheOwnerSaysSo) {
  EXPECT_EQ(Put("k", "v"), WireStatus::kOk);
  Own(2);
  const Outcome outcome = Ask(Header(Op::kGet), "k");
  EXPECT_EQ(outcome.status, WireStatus::kWrongOwner);
  EXPECT_EQ(outcome.wait, Duration::zero());
  EXPECT_EQ(Put("k", "v"), WireStatus::kWrongOwner);
  EXPECT_EQ(Ask(Op::kRemove, "k"), WireStatus::kWrongOwner);
  EXPECT_EQ(session_->view_version(), ViewVersion(1, 2));
  Own(1);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kMiss) << "dropped when the slot went";
}

TEST_F(DataServiceTest, AClientWithANewerViewIsAskedToWait) {
  wire::FrameHeader header = Header(Op::kGet);
  header.view = ViewVersion(1, 99).packed();
  const Outcome outcome = Ask(header, "k");
  EXPECT_EQ(outcome.status, WireStatus::kWrongOwner);
  EXPECT_GT(outcome.wait, Duration::zero());
}

TEST_F(DataServiceTest, ALeaseThatEndsDuringThePutFencesIt) {
  const wire::FrameHeader header = Header(Op::kPut);
  fabric::PutTarget target;
  ASSERT_EQ(session_->BeginPut({&header, "late", kSlot, 1}, &target).status, WireStatus::kOk);
  target.value[0] = std::byte{'v'};
  const uint64_t sum = Checksum(AsBytes("v"));
  target.piece_sums[0] = sum;
  clock_.Advance(seconds(101));
  EXPECT_EQ(session_->EndPut(sum, sum), WireStatus::kFenced);
  ownership_.RenewLease(clock_.Now() + seconds(100));
  EXPECT_EQ(Ask(Op::kExists, "late"), WireStatus::kMiss);
}

TEST_F(DataServiceTest, AFencedServerNeitherReadsNorWrites) {
  EXPECT_EQ(Put("k", "v"), WireStatus::kOk);
  clock_.Advance(seconds(100));
  EXPECT_EQ(Put("k2", "v"), WireStatus::kFenced);
  EXPECT_EQ(Ask(Op::kRemove, "k"), WireStatus::kFenced);
  EXPECT_EQ(Multi(Op::kMultiRemove, {"k"})[0].status, WireStatus::kFenced);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kFenced);
  EXPECT_EQ(Multi(Op::kMultiExists, {"k"})[0].status, WireStatus::kFenced);
}

TEST_F(DataServiceTest, ADrainingServerSendsEveryoneAway) {
  service_->Drain();
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kRetryLater);
  EXPECT_GT(session_->retry_ms(), 0U);
  EXPECT_EQ(Put("k", "v"), WireStatus::kRetryLater);
  EXPECT_EQ(Multi(Op::kMultiExists, {"a", "b"})[1].status, WireStatus::kRetryLater);
  EXPECT_EQ(Ask(Op::kPing, ""), WireStatus::kOk);
}

TEST_F(DataServiceTest, ValuesLargerThanThePoolAreTooLarge) {
  const wire::FrameHeader header = Header(Op::kPut);
  fabric::PutTarget target;
  EXPECT_EQ(session_->BeginPut({&header, "k", kSlot, 64 * kMiB}, &target).status,
            WireStatus::kTooLarge);
}

TEST_F(DataServiceTest, AFullPoolEvictsTheOldest) {
  const std::string value(kMiB, 'v');
  for (int i = 0; i < 100; ++i) {
    // As the transport does: memory that is being made is worth a short wait.
    const std::string key = "k" + std::to_string(i);
    WireStatus status = WireStatus::kRetryLater;
    EXPECT_TRUE(ems::testing::Eventually([&] {
      status = Put(key, value);
      return status != WireStatus::kRetryLater;
    }));
    ASSERT_EQ(status, WireStatus::kOk) << i;
  }
  EXPECT_EQ(Ask(Op::kExists, "k99"), WireStatus::kOk);
  EXPECT_EQ(Ask(Op::kExists, "k0"), WireStatus::kMiss);
}

TEST_F(DataServiceTest, MultiOpsAnswerEachItem) {
  EXPECT_EQ(Put("a", "1"), WireStatus::kOk);
  EXPECT_EQ(Put(std::string_view("n\0l", 3), "22"), WireStatus::kOk);
  EXPECT_EQ(Put("empty", ""), WireStatus::kOk);
  const std::vector<std::string> keys = {"a", "no", std::string("n\0l", 3), "empty"};
  std::vector<wire::ItemResult> exists = Multi(Op::kMultiExists, keys);
  ASSERT_EQ(exists.size(), 4U);
  EXPECT_EQ(exists[0].value_bytes, 1U);
  EXPECT_EQ(exists[1].status, WireStatus::kMiss);
  EXPECT_EQ(exists[2].value_bytes, 2U);
  EXPECT_EQ(exists[3].status, WireStatus::kOk);
  EXPECT_EQ(exists[3].tier, wire::ItemTier::kDram);
  EXPECT_EQ(exists[1].tier, wire::ItemTier::kUnknown);
  std::vector<wire::ItemResult> get = Multi(Op::kMultiGet, keys);
  EXPECT_EQ(Payload(), "122");
  EXPECT_EQ(get[2].checksum, Checksum(AsBytes("22")));
  EXPECT_EQ(get[3].checksum, Checksum({}));
  session_->Sent();
  std::vector<wire::ItemResult> removed = Multi(Op::kMultiRemove, {"a", "a"});
  EXPECT_EQ(removed[0].status, WireStatus::kOk);
  EXPECT_EQ(removed[1].status, WireStatus::kMiss);
}

// They are looked up in pieces.
TEST_F(DataServiceTest, AMultiExistsOfManyKeysAnswersEachInItsPlace) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < 600; ++i) {
    keys.push_back("k" + std::to_string(i));
    if (i % 3 == 0) {
      ASSERT_EQ(Put(keys.back(), std::string(1 + i % 7, 'v')), WireStatus::kOk);
    }
  }
  const std::vector<wire::ItemResult> found = Multi(Op::kMultiExists, keys);
  ASSERT_EQ(found.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(found[i].status, i % 3 == 0 ? WireStatus::kOk : WireStatus::kMiss) << keys[i];
    EXPECT_EQ(found[i].value_bytes, i % 3 == 0 ? 1 + i % 7 : 0) << keys[i];
  }
}

// A bug that was there: the empty results went out as the error's text.
TEST_F(DataServiceTest, AMultiRequestThatMustWaitLeavesNoBody) {
  behind_ = true;
  Outcome outcome;
  Multi(Op::kMultiExists, {"a", "b"}, &outcome);
  EXPECT_EQ(outcome.status, WireStatus::kWrongOwner);
  EXPECT_GT(outcome.wait, Duration::zero());
  EXPECT_TRUE(answer_.body.empty());
}

TEST_F(DataServiceTest, RangesVerifyWhereverTheyAreCut) {
  const uint64_t seed = 5;
  std::mt19937_64 random(seed);
  for (const uint64_t size : {uint64_t{1}, uint64_t{1000}, kPieceBytes - 1, kPieceBytes,
                              kPieceBytes + 1, 3 * kPieceBytes, 5 * kPieceBytes + 777}) {
    const std::string key = "r" + std::to_string(size);
    const std::string value = MakeValue("kv", key, 1, size);
    ASSERT_EQ(Put(key, value), WireStatus::kOk);
    std::vector<uint64_t> cuts = {0, 1, size / 2, size - 1, size};
    for (uint64_t piece = 1; piece * kPieceBytes < size + 2; ++piece) {
      for (const uint64_t at :
           {piece * kPieceBytes - 1, piece * kPieceBytes, piece * kPieceBytes + 1}) {
        if (at <= size) cuts.push_back(at);
      }
    }
    for (int i = 0; i < 20; ++i) cuts.push_back(random() % (size + 1));
    for (const uint64_t from : cuts) {
      for (const uint64_t to : cuts) {
        if (to < from) continue;
        const wire::RangeBody range{.offset = from, .length = to - from};
        ASSERT_EQ(Ask(Header(Op::kGetRange), key, wire::RawBytes(range)).status, WireStatus::kOk);
        PieceHasher hasher;
        hasher.Start({}, kPieceBytes - from % kPieceBytes);
        hasher.Update(AsBytes(value).subspan(from, to - from));
        ASSERT_EQ(answer_.checksum, hasher.Finish()) << from << " to " << to << " of " << size;
        ASSERT_TRUE(Payload() == value.substr(from, to - from));
      }
    }
    session_->Sent();
  }
}

TEST_F(DataServiceTest, RangesBeyondTheEndAreOutOfRange) {
  ASSERT_EQ(Put("k", "0123456789"), WireStatus::kOk);
  for (const wire::RangeBody& range :
       {wire::RangeBody{0, 11}, wire::RangeBody{10, 1}, wire::RangeBody{11, 0},
        wire::RangeBody{5, ~uint64_t{0}}, wire::RangeBody{~uint64_t{0}, 1},
        wire::RangeBody{~uint64_t{0} - 1, 5}}) {
    EXPECT_EQ(Ask(Header(Op::kGetRange), "k", wire::RawBytes(range)).status,
              WireStatus::kOutOfRange);
  }
}

TEST_F(DataServiceTest, ManyRangesInOneRequest) {
  const std::string value = MakeValue("kv", "big", 1, 3 * kPieceBytes + 5);
  ASSERT_EQ(Put("big", value), WireStatus::kOk);
  ASSERT_EQ(Put("small", "0123456789"), WireStatus::kOk);
  ranges_ = {{0, 10}, {kPieceBytes - 1, kPieceBytes + 2}, {0, 1}, {8, 3}, {4, 0}};
  const std::vector<wire::ItemResult> results =
      Multi(Op::kMultiGetRange, {"small", "big", "none", "small", "small"});
  ASSERT_EQ(results.size(), 5U);
  EXPECT_EQ(results[0].whole_bytes, 10U);
  EXPECT_EQ(results[0].checksum, Checksum(AsBytes("0123456789")));
  EXPECT_EQ(results[1].whole_bytes, value.size());
  EXPECT_EQ(results[1].value_bytes, kPieceBytes + 2);
  EXPECT_EQ(results[2].status, WireStatus::kMiss);
  EXPECT_EQ(results[3].status, WireStatus::kOutOfRange);
  EXPECT_EQ(results[4].status, WireStatus::kOk);
  EXPECT_EQ(results[4].value_bytes, 0U);
  EXPECT_EQ(Payload(), "0123456789" + value.substr(kPieceBytes - 1, kPieceBytes + 2));
  EXPECT_THAT(registry_.Render(), ::testing::HasSubstr("ems_server_read_bytes_total 65548\n"));
}

TEST_F(DataServiceTest, CountsWhatItAnswers) {
  EXPECT_EQ(Put("k", "12345"), WireStatus::kOk);
  EXPECT_EQ(Put("k", "12345"), WireStatus::kOk);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kOk);
  EXPECT_EQ(Ask(Op::kGet, "x"), WireStatus::kMiss);
  const std::string text = registry_.Render();
  EXPECT_NE(text.find("ems_server_stored_bytes_total 5\n"), std::string::npos) << text;
  EXPECT_NE(text.find("ems_server_deduplicated_bytes_total 5\n"), std::string::npos);
  EXPECT_NE(text.find("ems_server_read_bytes_total 5\n"), std::string::npos);
}

}  // namespace
}  // namespace ems::server
