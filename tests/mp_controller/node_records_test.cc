// What must hold: what is remembered of a server is in the store before anybody hears of it, and
// changes nothing when the store refuses it; a change of one thing keeps the others.
#include "mp_controller/node_records.h"

#include <gtest/gtest.h>

#include "common/bytes.h"
#include "common/metrics.h"
#include "proto/controller.pb.h"
#include "tests/mp_controller/no_store.h"

namespace ems::controller {
namespace {

class FakeStore final : public NoStore {
 public:
  Status PutNode(const StoredNode& node, uint32_t next_node_id) override {
    if (refuses) return Error(StatusCode::kUnavailable, "the disk is full");
    last = node;
    last_next = next_node_id;
    return OkStatus();
  }

  bool refuses = false;
  StoredNode last;
  uint32_t last_next = 0;
};

class NodeRecordsTest : public ::testing::Test {
 protected:
  NodeRecordsTest() { membership_.AddNode(NodeId(3), "a", {.joined_unix_ms = 5}); }
  Status Set(const std::string& name, uint64_t bytes) {
    v1::SetNodeRequest request;
    request.set_name(name);
    request.set_dram_bytes(bytes);
    return records_.Set(request, 9);
  }
  Status Drain(const std::string& name, const DhtView& view, bool cancel = false) {
    v1::DrainNodeRequest request;
    request.set_name(name);
    request.set_cancel(cancel);
    return records_.Drain(request, view, 9);
  }

  MetricsRegistry registry_;
  ControllerMetrics metrics_{&registry_};
  FakeStore store_;
  Membership membership_{MembershipOptions()};
  Drains drains_{{}};
  NodeRecords records_{{&store_, &membership_, &metrics_, &drains_}};
};

TEST_F(NodeRecordsTest, AChangeOfOneThingKeepsTheOthers) {
  StoredNode record = records_.Of(NodeId(3));
  EXPECT_EQ(record.name, "a");
  EXPECT_EQ(record.times.joined_unix_ms, 5);
  record.stopped_boot_id = 77;
  record.times.left_unix_ms = 8;
  ASSERT_EQ(records_.Put(record, 9), OkStatus());
  ASSERT_EQ(Set("a", kGiB), OkStatus());
  EXPECT_EQ(store_.last.stopped_boot_id, 77u);
  EXPECT_EQ(store_.last.times.left_unix_ms, 8);
  EXPECT_EQ(store_.last.dram_bytes, kGiB);
  EXPECT_EQ(store_.last_next, 9u);
  EXPECT_EQ(records_.DramBytes(NodeId(3)), kGiB);
  EXPECT_EQ(membership_.TimesOf(NodeId(3)).left_unix_ms, 8);
}

TEST_F(NodeRecordsTest, WhatTheStoreRefusesHasNotHappened) {
  ASSERT_EQ(Set("a", kGiB), OkStatus());
  store_.refuses = true;
  EXPECT_EQ(Set("a", 2 * kGiB).code(), StatusCode::kUnavailable);
  EXPECT_EQ(records_.DramBytes(NodeId(3)), kGiB);
  EXPECT_EQ(metrics_.store_errors.value(), 1);
}

TEST_F(NodeRecordsTest, ADrainIsInTheStoreBeforeItHoldsAndEachOtherChangeKeepsIt) {
  const auto empty = *DhtView::Make({1, 1}, {}, SlotTable(), false);
  EXPECT_EQ(Drain("b", *empty).code(), StatusCode::kNotFound);
  store_.refuses = true;
  EXPECT_EQ(Drain("a", *empty).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(drains_.IsSet(NodeId(3)));
  store_.refuses = false;
  ASSERT_EQ(Drain("a", *empty), OkStatus());
  EXPECT_TRUE(store_.last.drained);
  EXPECT_TRUE(drains_.IsSet(NodeId(3)));
  ASSERT_EQ(Set("a", kGiB), OkStatus());
  EXPECT_TRUE(store_.last.drained);
  ASSERT_EQ(Drain("a", *empty, /*cancel=*/true), OkStatus());
  EXPECT_FALSE(store_.last.drained);
  EXPECT_EQ(store_.last.dram_bytes, kGiB);
  EXPECT_FALSE(drains_.IsSet(NodeId(3)));
}

TEST_F(NodeRecordsTest, TheLastServerThatCouldHaveSlotsIsNotDrained) {
  const auto view_of = [](const std::vector<uint32_t>& ids) {
    std::vector<NodeInfo> nodes(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) nodes[i].id = NodeId(ids[i]);
    return *DhtView::Make({1, 1}, nodes, SlotTable(), false);
  };
  EXPECT_EQ(Drain("a", *view_of({3})).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(drains_.IsSet(NodeId(3)));
  drains_.Set(NodeId(4), true);
  EXPECT_EQ(Drain("a", *view_of({3, 4})).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Drain("a", *view_of({3, 4, 5})), OkStatus());
}

TEST_F(NodeRecordsTest, WhatCannotBeSetIsRefusedByName) {
  EXPECT_EQ(Set("b", kGiB).code(), StatusCode::kNotFound);
  EXPECT_EQ(Set("a", kMiB).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Set("a", uint64_t{1} << 50).code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(Set("a", kGiB), OkStatus());
  ASSERT_EQ(Set("a", 0), OkStatus());
  EXPECT_EQ(records_.DramBytes(NodeId(3)), 0u);
  ASSERT_EQ(Set("a", kGiB), OkStatus());
  records_.Forget(NodeId(3));
  EXPECT_EQ(records_.DramBytes(NodeId(3)), 0u);
}

}  // namespace
}  // namespace ems::controller
