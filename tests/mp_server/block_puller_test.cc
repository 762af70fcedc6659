// What must hold: a block comes from DRAM, the SSD or the source, in this order; what does not
// match its digest, or whose slot is another server's, becomes visible to nobody.
#include "mp_server/block_puller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/sha256.h"
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
              Deadline) override {
    ++reads;
    EXPECT_EQ(file.path, "w");
    EXPECT_EQ(file.tag, "t");
    if (!fault.ok()) return fault;
    std::memcpy(into.data(), content.data() + offset, into.size());
    return OkStatus();
  }
  model::SourceCounters counters() const override { return {}; }

  std::string content = std::string(kBytes, 'c');
  Status fault;
  int reads = 0;
};

class BlockPullerTest : public SmallTierTest {
 protected:
  BlockPullerTest() : SmallTierTest("block") {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->model = "m";
    manifest->files = {{"w", kBytes, "t"}};
    manifest->blocks = {{0, 0, kBytes, {}}};
    task_.manifest = manifest;
    task_.ns = kNs;
    task_.slot = SlotId(5);
    task_.job = 1;
    puller_.emplace(store_.get(), &ownership_, &stop_);
    ownership_.SetSelf(NodeId(1));
    Own(1);
    ownership_.RenewLease(Clock::System().Now() + seconds(100));
  }
  // All slots belong to `owner` in the next view.
  void Own(uint32_t owner) {
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(owner));
    std::vector<NodeInfo> nodes(2);
    nodes[0].id = NodeId(1);
    nodes[1].id = NodeId(2);
    const ViewVersion version(1, ++epoch_);
    store_->SetOwnedSlots(version,
                          ownership_.Install(**DhtView::Make(version, nodes, slots, false)));
  }
  Result<BlockPuller::Pulled> Pull() {
    const auto open = [this]() -> Result<std::shared_ptr<model::WeightSource>> {
      ++opened_;
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

  ModelPull::Task task_;
  Ownership ownership_{&Clock::System()};
  uint64_t epoch_ = 0;
  StopFlag stop_;
  std::optional<BlockPuller> puller_;
  OneFile source_;
  int opened_ = 0;
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

TEST_F(BlockPullerTest, ComesBackFromTheSsd) {
  const auto first = Pull();
  ASSERT_TRUE(first.ok()) << first.status();
  StopFlag never;
  const Deadline deadline = Deadline::After(seconds(20));
  while (!store_->OnSsd(kNs, Key()) && !deadline.Passed()) never.WaitFor(milliseconds(2));
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

TEST_F(BlockPullerTest, OtherBytesThanBeforeAreRefusedAndNotStored) {
  Sha256 sha256;
  task_.digest = sha256.Digest(AsBytes("what it was"));
  const auto pulled = Pull();
  EXPECT_EQ(pulled.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(pulled.status())), HasSubstr("source has changed"));
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

// Its worker comes again soon, for as long as the controller is away: it read the source each time.
TEST_F(BlockPullerTest, WithoutALeaseNothingIsReadOrStored) {
  ownership_.Revoke();
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_FALSE(pulled->ours);
  EXPECT_EQ(source_.reads, 0);
  EXPECT_EQ(Stored(), "");
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
