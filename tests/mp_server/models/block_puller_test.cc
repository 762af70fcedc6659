// What must hold: a block comes from DRAM, the SSD or the source, in this order; what does not
// match its digest, or whose slot is another server's, becomes visible to nobody.
#include "mp_server/models/block_puller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checksum.h"
#include "common/copy.h"
#include "common/sha256.h"
#include "mp_server/store/namespace_store.h"
#include "tests/support/eventually.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 300'000;

// One file of kBytes bytes.
class OneFile final : public model::WeightSource {
 public:
  Result<std::vector<model::SourceFile>> List(Deadline) override {
    return std::vector<model::SourceFile>();
  }
  Status Read(const model::SourceFile& file, uint64_t offset, MutableBytes into,
              Deadline deadline) override {
    ++reads;
    deadlines.push_back(deadline);
    EXPECT_EQ(file.path, "w");
    EXPECT_EQ(file.tag, "t");
    EXPECT_EQ(file.md5_tag, md5_tag);
    if (!fault.ok()) return fault;
    std::memcpy(into.data(), content.data() + offset, into.size());
    if (damage) damage(reads, into);
    return OkStatus();
  }
  Result<bool> ReadCompared(const model::SourceFile& file, uint64_t offset, MutableBytes into,
                            Deadline deadline) override {
    EMS_RETURN_IF_ERROR(Read(file, offset, into, deadline));
    return reads >= compared_from;
  }
  model::SourceCounters counters() const override { return {}; }

  std::string content = std::string(kBytes, 'c');
  Status fault;
  std::function<void(int read, MutableBytes bytes)> damage;
  int reads = 0;
  std::vector<Deadline> deadlines;  // of each read
  bool md5_tag = false;             // what it is to be told
  int compared_from = 1000;         // that read and later ones have a checksum
};

class BlockPullerTest : public SmallTierTest {
 protected:
  BlockPullerTest() : SmallTierTest("block") {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->model = "m";
    manifest->files = {{"w", kBytes, "t"}};
    manifest->blocks = {{0, 0, kBytes, {}}};
    manifest_ = manifest;
    task_.manifest = manifest;
    task_.ns = kNs;
    task_.slot = SlotId(5);
    task_.job = 1;
    puller_.emplace(store_.get(), &ownership_, &stop_, 8, &orphans_);
    ownership_.SetSelf(NodeId(1));
    ownership_.SetActive(1000);  // nobody else has the slots
    Own(1);
    ownership_.RenewLease(Clock::System().Now() + seconds(100));
  }
  // All slots belong to `owner` in the next view.
  void Own(uint32_t owner) {
    const auto view = NextView(owner);
    store_->SetOwnedSlots({view->version(), ownership_.Install(*view)});
  }
  std::shared_ptr<const DhtView> NextView(uint32_t owner) {
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(owner));
    std::vector<NodeInfo> nodes(2);
    nodes[0].id = NodeId(1);
    nodes[1].id = NodeId(2);
    return *DhtView::Make(ViewVersion(1, ++epoch_), nodes, slots, false);
  }
  Result<BlockPuller::Pulled> Pull() {
    const auto open = [this](uint32_t stream) -> Result<std::shared_ptr<model::WeightSource>> {
      ++opened_;
      streams_.push_back(stream);
      return std::shared_ptr<model::WeightSource>(std::shared_ptr<void>(), &source_);
    };
    return puller_->Pull(task_, open, &buffer_);
  }
  std::string Key() const {
    Sha256 sha256;
    return model::BlockKey(sha256.Digest(AsBytes(source_.content)));
  }
  std::string Stored() {
    const ObjectPin pin = dram_->Get(kNs, Key(), false);
    return pin ? std::string(AsText(pin.value())) : std::string();
  }

  std::shared_ptr<model::Manifest> manifest_;
  ModelPull::Task task_;
  Ownership ownership_{&Clock::System()};
  uint64_t epoch_ = 0;
  StopFlag stop_;
  OrphanedBlocks orphans_;
  std::optional<BlockPuller> puller_;
  OneFile source_;
  int opened_ = 0;
  std::vector<uint32_t> streams_;
  std::vector<std::byte> buffer_;
};

TEST_F(BlockPullerTest, ComesFromTheSourceOnceThenFromDram) {
  const auto first = Pull();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->ours);
  EXPECT_EQ(first->outcome.source_bytes, kBytes);
  EXPECT_FALSE(first->outcome.shared);
  EXPECT_EQ(Stored(), source_.content);
  task_.digest = first->outcome.digest;
  const auto second = Pull();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->outcome.source_bytes, 0U);
  EXPECT_EQ(source_.reads, 1);
  EXPECT_EQ(opened_, 1) << "what is here needs no source";
}

TEST_F(BlockPullerTest, EqualBytesOfAnotherVersionAreReadAndNotStoredAgain) {
  ASSERT_TRUE(Pull().ok());
  const auto other = Pull();
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->outcome.source_bytes, kBytes);
  EXPECT_TRUE(other->outcome.shared);
}

// A version whose blocks are being brought in, or were last, is not what makes room.
TEST_F(BlockPullerTest, ABlockGoesWithItsVersionWhichIsInUseWhileItIsBroughtIn) {
  task_.model_id = 7;
  const std::shared_ptr<NamespaceStore> store = dram_->Open(kNs);
  const auto put = [&](const std::string& key) {
    auto reserved = dram_->Reserve(kNs, SlotId(5), key, key.size());
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    PieceHasher hasher;
    hasher.Start(reserved->piece_sums());
    CopyValue(reserved->value(), AsBytes(key).data(), &hasher);
    bool stored = false;
    ASSERT_TRUE(ObjectStore::Publish(*std::move(reserved), hasher.Finish(), {}, &stored).ok());
  };
  ASSERT_TRUE(Pull().ok());
  // The SSD's writer holds it until it is written.
  ASSERT_TRUE(ems::testing::Eventually([&] {
    return tier_->Find({kNs, KeyHash(Key())}, false) && store->Usage().pinned_objects == 0;
  }));
  put("colder");
  store->objects().UseVersion(7);
  ASSERT_EQ(store->room().EvictColdest(1, UINT64_MAX), 1U);
  EXPECT_FALSE(store->Find("colder", false)) << "the block is known as one of version 7";
  EXPECT_EQ(Stored(), source_.content);
  put("colder still");
  source_.fault = Error(StatusCode::kUnavailable, "down");
  EXPECT_FALSE(Pull().ok()) << "of another block, say";
  ASSERT_EQ(store->room().EvictColdest(1, UINT64_MAX), 1U);
  EXPECT_FALSE(store->Find("colder still", false));
  EXPECT_EQ(Stored(), source_.content) << "what the version has stays while it is brought in";
}

TEST_F(BlockPullerTest, ComesBackFromTheSsd) {
  const auto first = Pull();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(ems::testing::Eventually([&] {
    return tier_->Find({kNs, KeyHash(Key())}, false).has_value();
  }));
  while (dram_->Remove(kNs, Key())) {
  }
  ASSERT_EQ(Stored(), "");
  task_.digest = first->outcome.digest;
  task_.pin = true;
  const auto back = Pull();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->outcome.promoted_bytes, kBytes);
  EXPECT_EQ(back->outcome.source_bytes, 0U);
  EXPECT_TRUE(static_cast<bool>(back->outcome.pin));
  EXPECT_EQ(Stored(), source_.content);
}

// Whoever put it there under the name of a block: it was found again and again.
TEST_F(BlockPullerTest, AnObjectOfAnotherSizeUnderItsNameIsReplaced) {
  const std::string wrong = "short";
  auto reserved = dram_->Reserve(kNs, SlotId(5), Key(), wrong.size());
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  PieceHasher hasher;
  hasher.Start(reserved->piece_sums());
  CopyValue(reserved->value(), AsBytes(wrong).data(), &hasher);
  bool stored = false;
  ASSERT_TRUE(ObjectStore::Publish(*std::move(reserved), hasher.Finish(), {}, &stored).ok());
  ASSERT_EQ(Stored(), wrong);
  task_.digest = Sha256().Digest(AsBytes(source_.content));
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->outcome.source_bytes, kBytes);
  EXPECT_EQ(Stored(), source_.content);
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(source_.reads, 1);
}

TEST_F(BlockPullerTest, OtherBytesThanBeforeAreRefusedAndNotStored) {
  Sha256 sha256;
  task_.digest = sha256.Digest(AsBytes("what it was"));
  const auto pulled = Pull();
  EXPECT_EQ(pulled.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(pulled.status())), HasSubstr("source has changed"));
  EXPECT_EQ(source_.reads, 2);
  EXPECT_EQ(Stored(), "");
}

// Two damaged reads, each in its own way, were taken for other bytes of the source.
TEST_F(BlockPullerTest, OnlyTheSameOtherBytesTwiceMeanThatTheSourceHasChanged) {
  task_.digest = Sha256().Digest(AsBytes(source_.content));
  source_.damage = [](int read, MutableBytes bytes) {
    if (read <= 3) bytes[static_cast<size_t>(read)] ^= std::byte{1};
  };
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->outcome.source_bytes, 4 * kBytes);
  EXPECT_EQ(Stored(), source_.content);

  task_.digest = Sha256().Digest(AsBytes("what it was"));
  source_.reads = 0;
  EXPECT_EQ(Pull().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(source_.reads, 5) << "three of their own kind, and twice the same";

  source_.damage = [](int read, MutableBytes bytes) {
    bytes[static_cast<size_t>(read)] ^= std::byte{1};
  };
  source_.reads = 0;
  EXPECT_EQ(Pull().status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(source_.reads, 6);
}

TEST_F(BlockPullerTest, ADigestThatIsNotCertainIsOnlyLookedFor) {
  Sha256 sha256;
  task_.digest = sha256.Digest(AsBytes("what was read before"));
  task_.certain = false;
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(source_.reads, 1);
  EXPECT_EQ(pulled->outcome.digest, sha256.Digest(AsBytes(source_.content)));
  EXPECT_EQ(Stored(), source_.content);
}

TEST_F(BlockPullerTest, WhatIsToBeReadTwiceHasToBeTheSameTwice) {
  manifest_->source.first_read = model::FirstRead::kTwiceUnlessChecked;
  source_.damage = [](int read, MutableBytes bytes) {
    if (read <= 2) bytes[static_cast<size_t>(read)] ^= std::byte{1};
  };
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->outcome.source_bytes, 4 * kBytes);
  EXPECT_THAT(streams_, ::testing::ElementsAre(0, 1, 0, 1)) << "over two connections";
  EXPECT_EQ(Stored(), source_.content);
}

// All of them together had as long as one: with a low rate the job failed, though bytes came.
TEST_F(BlockPullerTest, EachReadHasItsOwnPatience) {
  manifest_->source.first_read = model::FirstRead::kTwice;
  source_.damage = [](int read, MutableBytes bytes) {
    bytes[static_cast<size_t>(read)] ^= std::byte{1};
  };
  EXPECT_EQ(Pull().status().code(), StatusCode::kDataLoss);
  ASSERT_EQ(source_.deadlines.size(), 6U);
  for (size_t i = 1; i < 6; ++i)
    EXPECT_GT(source_.deadlines[i].at(), source_.deadlines[i - 1].at());
}

TEST_F(BlockPullerTest, AReadThatSharesALowRateWaitsForAllOthers) {
  ASSERT_TRUE(Pull().ok());
  const seconds slowest(300 + kBytes / 2048);  // one that is slower is given up
  EXPECT_LE(source_.deadlines.back().Remaining(), slowest);
  EXPECT_GT(source_.deadlines.back().Remaining(), slowest - seconds(60));
  for (const auto first_read : {model::FirstRead::kOnce, model::FirstRead::kTwice}) {
    manifest_->source.first_read = first_read;
    manifest_->source.bytes_per_s_max = 1000;  // so 8 reads take 40 minutes, on half a stream 80
    ASSERT_TRUE(Pull().ok());
    EXPECT_GT(source_.deadlines.back().Remaining(), seconds(2 * 80 * 60 - 60));
    manifest_->source.bytes_per_s_max = 1;
    ASSERT_TRUE(Pull().ok());
    EXPECT_GT(source_.deadlines.back().Remaining(), seconds(23 * 3600));
    manifest_->source.bytes_per_s_max = 1'000'000'000;
    ASSERT_TRUE(Pull().ok());
    EXPECT_GT(source_.deadlines.back().Remaining(), seconds(240)) << "never less";
  }
}

TEST_F(BlockPullerTest, BlocksBeginOnEitherStreamAndWhatIsReadOnceOnTheOnlyOne) {
  manifest_->blocks.push_back(manifest_->blocks[0]);
  task_.block = 1;
  ASSERT_TRUE(Pull().ok());
  EXPECT_THAT(std::exchange(streams_, {}), ::testing::ElementsAre(0));
  manifest_->source.first_read = model::FirstRead::kTwice;
  ASSERT_TRUE(Pull().ok());
  EXPECT_THAT(streams_, ::testing::ElementsAre(1, 0));
}

TEST_F(BlockPullerTest, WhatIsReadOnceIsTakenAsItComes) {
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(source_.reads, 1);
}

TEST_F(BlockPullerTest, WhatHasBeenComparedWithAChecksumIsNotReadAgain) {
  manifest_->source.first_read = model::FirstRead::kTwiceUnlessChecked;
  source_.compared_from = 1;
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(source_.reads, 1);
  // Of two servers behind one name, say, one gives them.
  source_.reads = 0;
  source_.compared_from = 3;
  source_.damage = [](int read, MutableBytes bytes) {
    if (read <= 2) bytes[static_cast<size_t>(read)] ^= std::byte{1};
  };
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(source_.reads, 3);
  EXPECT_EQ(Stored(), source_.content);
}

TEST_F(BlockPullerTest, WhatIsReadTwiceInAnyCaseIsReadAgainThoughItHasAChecksumAndASum) {
  manifest_->source.first_read = model::FirstRead::kTwice;
  manifest_->files[0].sum = "md5:0123456789abcdef0123456789abcdef";
  source_.md5_tag = true;
  source_.compared_from = 1;
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(source_.reads, 2);
}

TEST_F(BlockPullerTest, TheTagOfAFileOfPartsIsNoMd5OfItsBytes) {
  manifest_->files[0].sum = "md5-parts:300000:0123456789abcdef0123456789abcdef-1";
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(source_.reads, 1);
}

TEST_F(BlockPullerTest, WhatIsToBeReadTwiceIsReadOnceWhenItIsKnownOrHasASum) {
  manifest_->source.first_read = model::FirstRead::kTwiceUnlessChecked;
  manifest_->files[0].sum = "md5:0123456789abcdef0123456789abcdef";
  source_.md5_tag = true;
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(source_.reads, 1);
  manifest_->files[0].sum.clear();
  source_.md5_tag = false;
  task_.digest = Sha256().Digest(AsBytes(source_.content));
  while (dram_->Remove(kNs, Key())) {
  }
  while (Objects().Remove(Key(), [] {}).found) {
  }
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(source_.reads, 2);
}

TEST_F(BlockPullerTest, WhatIsNeverTheSameTwiceIsRefusedAndNotStored) {
  manifest_->source.first_read = model::FirstRead::kTwiceUnlessChecked;
  source_.damage = [](int read, MutableBytes bytes) {
    bytes[static_cast<size_t>(read)] ^= std::byte{1};
  };
  const auto pulled = Pull();
  EXPECT_EQ(pulled.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Message(pulled.status())), HasSubstr("differ between reads"));
  EXPECT_EQ(source_.reads, 6);
  EXPECT_EQ(Stored(), "");
}

TEST_F(BlockPullerTest, ErrorsOfTheSourceAreItsCallers) {
  source_.fault = Error(StatusCode::kPermissionDenied, "403");
  EXPECT_EQ(Pull().status(), source_.fault);
}

TEST_F(BlockPullerTest, ABlockOfAnotherServerIsNotRead) {
  Own(2);
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_FALSE(pulled->ours);
  EXPECT_EQ(source_.reads, 0);
}

TEST_F(BlockPullerTest, ABlockOfANamespaceThatIsGoneIsNotRead) {
  store_->SetNamespaces({.version = 2, .by_id = {}}, 1.0);
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_FALSE(pulled->ours);
  EXPECT_EQ(source_.reads, 0);
}

TEST_F(BlockPullerTest, WhatWasKeptIsTakenBackAndNotReadAgain) {
  const auto first = Pull();
  ASSERT_TRUE(first.ok()) << first.status();
  orphans_.Keep(kNs, dram_->Get(kNs, Key(), false));
  Own(2);
  Own(1);
  EXPECT_EQ(Stored(), "") << "slots that come back begin empty";
  task_.digest = first->outcome.digest;
  task_.pin = true;
  const auto again = Pull();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->ours);
  EXPECT_EQ(again->outcome.source_bytes, 0U);
  EXPECT_FALSE(again->outcome.shared);
  EXPECT_EQ(again->outcome.digest, first->outcome.digest);
  EXPECT_TRUE(again->outcome.pin);
  EXPECT_EQ(source_.reads, 1);
  EXPECT_EQ(Stored(), source_.content);
  EXPECT_FALSE(orphans_.Clear()) << "it is not kept twice";
}

// Something else had its name, or its memory has been damaged.
TEST_F(BlockPullerTest, WhatWasKeptAndHasAnotherDigestIsReadAgain) {
  const auto first = Pull();
  ASSERT_TRUE(first.ok()) << first.status();
  {
    ObjectPin pin = dram_->Get(kNs, Key(), false);
    const_cast<std::byte&>(pin.value()[kBytes / 2]) ^= std::byte{1};
    orphans_.Keep(kNs, std::move(pin));
  }
  Own(2);
  Own(1);
  task_.digest = first->outcome.digest;
  const auto again = Pull();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->outcome.source_bytes, kBytes);
  EXPECT_EQ(Stored(), source_.content);
}

// Its worker comes again soon, for as long as the controller is away: it read the source each time.
TEST_F(BlockPullerTest, WithoutALeaseNothingIsReadOrStored) {
  ownership_.Revoke();
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_FALSE(pulled->ours);
  EXPECT_EQ(source_.reads, 0);
  EXPECT_EQ(Stored(), "");
}

// As when the controller is away and the other servers, busy as they are, answer late.
TEST_F(BlockPullerTest, WhatWasReadWhenTheLeaseEndsIsStoredWhenItIsBack) {
  ManualClock clock;
  Ownership ownership(&clock);
  ownership.SetSelf(NodeId(1));
  ownership.SetActive(1000);  // nobody else has the slots
  (void)ownership.Install(*NextView(1));
  ownership.RenewLease(clock.Now() + seconds(1));
  puller_.emplace(store_.get(), &ownership, &stop_, 8);
  StopFlag ended;
  source_.damage = [&](int, MutableBytes) {
    clock.Advance(seconds(2));
    ended.Set();
  };
  Thread renewer("renewer", [&] {
    EXPECT_TRUE(ended.WaitFor(seconds(20)));
    StopFlag never;
    never.WaitFor(milliseconds(20));  // it is being waited for, or has been given up
    ownership.RenewLease(clock.Now() + seconds(100));
  });
  const auto pulled = Pull();
  renewer.Join();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_TRUE(pulled->ours) << "it would be read again";
  EXPECT_EQ(source_.reads, 1);
  EXPECT_EQ(Stored(), source_.content);
}

TEST_F(BlockPullerTest, StoppingEndsAWaitForRoom) {
  // All of the pool, pinned.
  std::vector<ObjectPin> pins;
  for (int i = 0; i < 100; ++i) {
    auto reserved = dram_->Reserve(kNs, SlotId(5), std::to_string(i), 256 * kKiB);
    if (!reserved.ok()) break;
    std::memset(reserved->value().data(), i, reserved->value().size());
    std::vector<uint64_t> sums(PieceCount(reserved->value().size()));
    HashPieces(reserved->value(), reserved->piece_sums());
    const uint64_t sum = CombinePieces(reserved->piece_sums().first(sums.size()));
    bool stored = false;
    ObjectPin pin;
    ASSERT_TRUE(ObjectStore::Publish(*std::move(reserved), sum, {.pin = &pin}, &stored).ok());
    pins.push_back(std::move(pin));
  }
  Thread stopper("stopper", [this] {
    stop_.WaitFor(milliseconds(50));
    stop_.Set();
  });
  EXPECT_EQ(Pull().status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace ems::server
