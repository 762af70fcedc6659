// What must hold: where the owner of a key cannot be reached, a read in a namespace with replicas
// is answered by a holder of a copy in the same call; what has no copy there is no miss; nothing
// else goes to holders.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "mp_sdk/internal/router.h"
#include "tests/mp_sdk/internal/router_calls.h"
#include "tests/support/memory_server.h"

namespace ems::internal {
namespace {

using fabric::Outcome;
using testing::MemoryServer;
using wire::Op;
using wire::WireStatus;

// Node 1 is gone and owns the even slots, node 2 the odd ones; 2 and 3 hold copies of the even
// ones.
class RouterCopiesTest : public ::testing::Test {
 protected:
  RouterCopiesTest() {
    for (MemoryServer* server : {&two_, &three_}) {
      server->store.gate = [this, server](const wire::FrameHeader& header, SlotId slot) -> Outcome {
        if (slot.value() % 2 == 1) return {};
        ++asked_;
        if ((header.flags & wire::kFlagCopy) == 0) return {.status = WireStatus::kWrongOwner};
        return {.status = server == &two_ ? first_ : second_};
      };
    }
    Install(2);
  }
  void Install(uint32_t replicas) {
    const std::vector<NodeInfo> nodes = {ServerNode(1, "127.0.0.1:1"),
                                         ServerNode(2, two_.address()),
                                         ServerNode(3, three_.address())};
    SlotTable slots;
    SlotCopies copies;
    const std::array<NodeId, 2> holders{NodeId(2), NodeId(3)};
    for (uint16_t s = 0; s < kSlotCount; ++s) {
      slots.set_owner(SlotId(s), NodeId(1U + s % 2U));
      if (s % 2 == 0) copies.Set(SlotId(s), holders);
    }
    views_.Install(*DhtView::Make(ViewVersion(1, ++epoch_), nodes, slots, false, {}, kNoCluster, {},
                                  std::move(copies)));
    auto table = std::make_shared<NamespaceTable>();
    table->version = epoch_;
    NamespaceInfo info;
    info.ref = {NamespaceId(1), 1};
    info.name = "kv";
    info.immutable = true;
    info.replicas = replicas;
    table->by_id[info.ref.id] = info;
    views_.Install(ViewCache::Namespaces(std::move(table)));
  }
  static Call Reads(Op op, const std::vector<std::string>& names) {
    Call call(op, names);
    call.batch.immutable = true;
    for (size_t i = 0; i < names.size(); ++i) call.Room(i, 5);
    return call;
  }

  MemoryServer two_, three_;
  std::atomic<int> asked_{0};
  std::atomic<WireStatus> first_{WireStatus::kOk}, second_{WireStatus::kOk};
  uint64_t epoch_ = 0;
  ViewCache views_;
  Router router_{RouterOptions(), &views_, {}};
};

TEST_F(RouterCopiesTest, AGetGoesToAHolderInTheSameCall) {
  two_.store.Insert("a", "value");
  Call get = Reads(Op::kGet, {"a"});
  get.Run(&router_);
  EXPECT_EQ(get.code(), StatusCode::kOk) << get.text();
  EXPECT_EQ(get.buffers[0], "value");
  EXPECT_EQ(router_.stats().copies_asked, 1U);
}

TEST_F(RouterCopiesTest, OfABatchThoseThatNeedItAlone) {
  two_.store.Insert("a", "value");
  two_.store.Insert("b", "other");
  two_.store.Insert("c", "third");
  Call get = Reads(Op::kGet, {"a", "b", "c"});  // slots 0, 1 and 2
  get.Run(&router_);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(get.code(i), StatusCode::kOk) << get.text(i);
  EXPECT_EQ(get.buffers, std::vector<std::string>({"value", "other", "third"}));
}

TEST_F(RouterCopiesTest, WhatHasNoCopyIsNoMiss) {
  first_ = WireStatus::kCopyMiss;
  Call get = Reads(Op::kGet, {"a"});
  get.Run(&router_);
  EXPECT_EQ(get.code(), StatusCode::kUnavailable) << get.text();
  EXPECT_EQ(asked_, 1) << "the other one holds none of this namespace";
}

TEST_F(RouterCopiesTest, TheSecondHolderIsAskedBehindTheFirst) {
  Install(3);
  three_.store.Insert("a", "value");
  first_ = WireStatus::kCopyMiss;
  Call get = Reads(Op::kGet, {"a"});
  get.Run(&router_);
  EXPECT_EQ(get.code(), StatusCode::kOk) << get.text();
  EXPECT_EQ(asked_, 2);
}

TEST_F(RouterCopiesTest, AHolderThatIsNoneAnyMoreEndsTheCallWithoutAWait) {
  first_ = WireStatus::kWrongOwner;
  Call get = Reads(Op::kExists, {"a"});
  get.Run(&router_);
  EXPECT_EQ(get.code(), StatusCode::kUnavailable) << get.text();
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(router_.stats().wrong_owner, 0U);
}

TEST_F(RouterCopiesTest, NothingElseGoesToHolders) {
  Call put(Op::kPut, {"a"});
  put.batch.immutable = true;
  put.Value(0, "value").Run(&router_);
  EXPECT_EQ(put.code(), StatusCode::kUnavailable) << put.text();
  Call mutable_get(Op::kGet, {"a"});
  mutable_get.Room(0, 5).Run(&router_);
  EXPECT_EQ(mutable_get.code(), StatusCode::kUnavailable);
  Install(1);
  Call get = Reads(Op::kGet, {"a"});
  get.Run(&router_);
  EXPECT_EQ(get.code(), StatusCode::kUnavailable) << "a namespace without replicas";
  EXPECT_EQ(asked_, 0);
}

}  // namespace
}  // namespace ems::internal
