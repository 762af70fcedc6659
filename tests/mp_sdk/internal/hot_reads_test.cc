// What must hold: reads of a key whose owner tells of copies are spread over all who have one, the
// owner answers for every copy that does not, in the same call, and nothing else changes.
#include "mp_sdk/internal/hot_reads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cluster/hot_holders.h"
#include "common/object_key.h"
#include "proto/copy_hint.h"
#include "tests/mp_sdk/internal/router_calls.h"
#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"

namespace ems::internal {
namespace {

using fabric::Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::MemoryServer;
using wire::Op;
using wire::WireStatus;

constexpr const char* kKey = "hot";

// Four servers, of which the first owns everything; "hot" has a copy on each other one.
class HotReadsTest : public ::testing::Test {
 protected:
  HotReadsTest() {
    std::vector<NodeInfo> nodes;
    for (uint32_t i = 0; i < 4; ++i) {
      servers_.push_back(std::make_unique<MemoryServer>());
      servers_[i]->store.Insert(kKey, "value");
      servers_[i]->store.gate = [this, i](const wire::FrameHeader& header, SlotId) -> Outcome {
        if (header.op != Op::kGet && header.op != Op::kMultiGet && header.op != Op::kGetRange)
          return {};
        ++asked_[i];
        const bool copy = (header.flags & wire::kFlagCopy) != 0;
        if (copy != (i > 0)) ++wrong_flags_;
        return {.status = i > 0 ? refusal_.load() : WireStatus::kOk};
      };
      nodes.push_back(ServerNode(i + 1, servers_[i]->address()));
    }
    views_.Install(ViewOf(1, nodes, {1}));
    Tell(7);
  }
  // What the owner says from now on.
  void Tell(uint8_t holders, uint32_t for_s = 20) {
    servers_[0]->store.copies = wire::CopyHint{.holders = holders, .seconds = for_s}.Pack();
  }
  Call Get(const std::vector<std::string>& keys = {kKey}) {
    Call call(Op::kGet, keys);
    call.batch.immutable = true;
    for (size_t i = 0; i < keys.size(); ++i) call.Room(i, 5);
    return call;
  }
  void ExpectHit() {
    Call call = Get();
    call.Run(&router_);
    EXPECT_EQ(call.code(), StatusCode::kOk) << call.text();
    EXPECT_EQ(call.buffers[0], "value");
  }
  int asked_copies() const { return asked_[1] + asked_[2] + asked_[3]; }

  std::atomic<int> asked_[4]{};
  std::atomic<int> wrong_flags_{0};
  std::atomic<WireStatus> refusal_{WireStatus::kOk};
  std::vector<std::unique_ptr<MemoryServer>> servers_;
  ViewCache views_;
  Router router_{RouterOptions(), &views_, {}};
};

TEST_F(HotReadsTest, AreSpreadOverOwnerAndCopiesInTurns) {
  for (int i = 0; i < 41; ++i) ExpectHit();
  EXPECT_EQ(asked_[0] + asked_copies(), 41);
  for (int i = 0; i < 4; ++i) EXPECT_GE(asked_[i], 10) << i;
  EXPECT_EQ(wrong_flags_, 0);
  EXPECT_EQ(router_.hot_stats().hits, static_cast<uint64_t>(asked_copies()));
  EXPECT_EQ(router_.hot_stats().misses, 0U);
}

TEST_F(HotReadsTest, OnlyTheHoldersThatTheOwnerNamesAreAsked) {
  Tell(1 << 1);
  const NodeId holder = HotHolders::Of(*views_.view(), SlotId(0), KeyHash(kKey).lo).nodes[1];
  for (int i = 0; i < 21; ++i) ExpectHit();
  EXPECT_EQ(asked_[holder.value() - 1], 10);
  EXPECT_EQ(asked_copies(), 10);
}

TEST_F(HotReadsTest, ACopyThatIsNotThereCostsAHopAndIsNotAskedAgain) {
  Tell(1, 20);
  ExpectHit();
  Tell(0);
  refusal_ = WireStatus::kCopyMiss;
  for (int i = 0; i < 10; ++i) ExpectHit();
  EXPECT_EQ(asked_copies(), 1);
  EXPECT_EQ(asked_[0], 11);
  EXPECT_EQ(router_.hot_stats().misses, 1U);
  EXPECT_EQ(router_.stats().retries, 0U);
  EXPECT_EQ(router_.stats().wrong_owner, 0U);
}

TEST_F(HotReadsTest, EveryRefusalOfACopyLeadsToTheOwner) {
  for (const WireStatus status :
       {WireStatus::kMiss, WireStatus::kWrongOwner, WireStatus::kStaleNamespace,
        WireStatus::kRetryLater, WireStatus::kFenced, WireStatus::kInternal, WireStatus::kInvalid,
        WireStatus::kChecksumMismatch, WireStatus::kUnimplemented}) {
    refusal_ = status;
    const int before = asked_copies();
    for (int i = 0; i < 8; ++i) ExpectHit();
    EXPECT_GT(asked_copies(), before) << wire::StatusName(status);
  }
  EXPECT_EQ(router_.stats().wrong_owner, 0U);
}

TEST_F(HotReadsTest, AHolderThatIsGoneIsNotMissed) {
  ExpectHit();
  for (size_t i = 1; i < 4; ++i) servers_[i]->server.reset();
  for (int i = 0; i < 20; ++i) ExpectHit();
}

TEST_F(HotReadsTest, AHolderThatHangsLeavesTheOwnerHalfOfTheTime) {
  ExpectHit();
  for (size_t i = 1; i < 4; ++i) {
    servers_[i]->store.gate = [](const wire::FrameHeader& header, SlotId) -> Outcome {
      if (header.op != Op::kGet) return {};
      return {.status = WireStatus::kOk, .wait = seconds(30), .patience = seconds(30)};
    };
  }
  for (int i = 0; i < 4; ++i) {
    Call call(Op::kGet, {kKey}, seconds(4));
    call.batch.immutable = true;
    call.Room(0, 5).Run(&router_);
    EXPECT_EQ(call.code(), StatusCode::kOk) << call.text();
  }
}

TEST_F(HotReadsTest, OfABatchOnlyTheHotKeyGoesElsewhere) {
  servers_[0]->store.Insert("cold", "other");
  servers_[0]->store.only_hot = kKey;
  for (int i = 0; i < 12; ++i) {
    Call call = Get({kKey, "cold"});
    call.Run(&router_);
    EXPECT_EQ(call.code(0), StatusCode::kOk) << call.text(0);
    EXPECT_EQ(call.code(1), StatusCode::kOk) << call.text(1);
    EXPECT_EQ(call.buffers[0], "value");
    EXPECT_EQ(call.buffers[1], "other");
  }
  EXPECT_EQ(asked_[0] + asked_copies(), 24) << "each key once";
  EXPECT_GE(asked_copies(), 6);
  EXPECT_EQ(wrong_flags_, 0);
}

TEST_F(HotReadsTest, ValuesThatMayChangeAreReadFromTheirOwnerAlone) {
  for (int i = 0; i < 10; ++i) {
    Call call(Op::kGet, {kKey});
    call.Room(0, 5).Run(&router_);
    EXPECT_EQ(call.code(), StatusCode::kOk);
  }
  EXPECT_EQ(asked_copies(), 0);
}

TEST_F(HotReadsTest, AMissOfTheOwnerIsAMiss) {
  ExpectHit();
  servers_[0]->store.Erase(kKey);
  refusal_ = WireStatus::kCopyMiss;
  for (int i = 0; i < 4; ++i) {
    Call call = Get();
    call.Run(&router_);
    EXPECT_EQ(call.code(), StatusCode::kNotFound) << call.text();
  }
}

}  // namespace
}  // namespace ems::internal
