// What must hold: a call for copies says of each key what the other server says.
#include "mp_server/forward/copy_calls.h"

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using wire::WireStatus;

class CopyCallsTest : public ForwardTest {
 protected:
  CopyCallsTest() {
    immutable_ = true;
    replicas_ = 2;
    Start(1);
    Start(2);
    Move({1, 2}, 1, {2});
    calls_.emplace(&Node(1).ownership(), std::chrono::seconds(5));
    calls_->peers().SetNodes(*view_);
  }
  std::optional<CopyCalls> calls_;
  const std::vector<CopyItem> items_ = {{kSlot, "a"}, {kSlot, "b"}};
};

TEST_F(CopyCallsTest, CopiesAreStoredFoundAndRemoved) {
  std::vector<ObjectPin> values;
  for (const CopyItem& item : items_) {
    ASSERT_EQ(Node(1).Put(kSlot, item.key, "value of " + item.key, false), WireStatus::kOk);
    values.push_back(Node(1).dram().Get(ForwardNode::kNs, item.key, false));
  }
  const auto status = [](const CopyResults& results, size_t i) {
    return results.ok() ? (*results)[i].status : WireStatus::kInternal;
  };
  auto found = calls_->Exist(NodeId(2), ForwardNode::kNs, items_);
  EXPECT_EQ(status(found, 0), WireStatus::kCopyMiss);
  auto put = calls_->Put(NodeId(2), ForwardNode::kNs, items_, values);
  EXPECT_EQ(status(put, 0), WireStatus::kOk);
  EXPECT_EQ(status(put, 1), WireStatus::kOk);
  found = calls_->Exist(NodeId(2), ForwardNode::kNs, items_);
  ASSERT_EQ(status(found, 1), WireStatus::kOk);
  EXPECT_EQ((*found)[1].value_bytes, std::string_view("value of b").size());
  EXPECT_EQ(Node(2).GetCopy(kSlot, "b").value, "value of b");
  auto removed = calls_->Remove(NodeId(2), ForwardNode::kNs, std::span(items_).first(1));
  EXPECT_EQ(status(removed, 0), WireStatus::kOk);
  EXPECT_EQ(Node(2).GetCopy(kSlot, "a").status, WireStatus::kCopyMiss);
}

TEST_F(CopyCallsTest, WhatIsRefusedAsAWholeIsSaidOfEachKey) {
  const NamespaceRef unknown{NamespaceId(9), 1};
  const auto found = calls_->Exist(NodeId(2), unknown, items_);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[0].status, WireStatus::kStaleNamespace);
}

TEST_F(CopyCallsTest, AServerThatIsGoneIsAnError) {
  Kill(2);
  EXPECT_FALSE(calls_->Exist(NodeId(2), ForwardNode::kNs, items_).ok());
}

}  // namespace
}  // namespace ems::server
