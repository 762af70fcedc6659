// What must hold: a change of the namespaces is in the store before anybody hears of it, and is not
// made at all when the store refuses it or may be an older copy.
#include "mp_controller/durable_namespaces.h"

#include <gtest/gtest.h>

#include "common/metrics.h"
#include "proto/controller.pb.h"
#include "tests/mp_controller/no_store.h"

namespace ems::controller {
namespace {

class FakeStore final : public NoStore {
 public:
  Status PutNamespace(const NamespaceChange& change) override {
    if (refuses) return Error(StatusCode::kUnavailable, "the disk is full");
    changes.push_back(change);
    return OkStatus();
  }

  bool refuses = false;
  std::vector<NamespaceChange> changes;
};

class DurableNamespacesTest : public ::testing::Test {
 protected:
  Status Create(const std::string& name) {
    v1::CreateNamespaceRequest request;
    request.set_name(name);
    return namespaces_.Create(request, &reply_);
  }
  // Of the table that watchers have.
  uint64_t Published() {
    WatchCursor cursor;
    const PublishedUpdate next = publisher_.Next(&cursor);
    v1::ClusterUpdate update;
    if (next.namespaces == nullptr) return 0;
    EXPECT_TRUE(update.ParseFromString(*next.namespaces));
    return update.namespaces().version();
  }

  MetricsRegistry registry_;
  ControllerMetrics metrics_{&registry_};
  FakeStore store_;
  ViewPublisher publisher_{16};
  StoreAge age_{MembershipOptions(), ControlRules()};
  DurableNamespaces namespaces_{{&store_, &publisher_, &metrics_, &age_}};
  v1::Namespace reply_;
};

TEST_F(DurableNamespacesTest, AChangeIsStoredThenPublished) {
  ASSERT_EQ(Create("a"), OkStatus());
  ASSERT_EQ(store_.changes.size(), 1U);
  EXPECT_EQ(store_.changes[0].info.name, "a");
  EXPECT_EQ(store_.changes[0].version, 1U);
  EXPECT_EQ(Published(), 1U);
  EXPECT_EQ(reply_.generation(), store_.changes[0].info.ref.generation);
  v1::DeleteNamespaceRequest gone;
  gone.set_name("a");
  v1::DeleteNamespaceReply deleted;
  ASSERT_EQ(namespaces_.Delete(gone, &deleted), OkStatus());
  EXPECT_TRUE(store_.changes[1].deleted);
  EXPECT_EQ(Published(), 2U);
}

TEST_F(DurableNamespacesTest, WhatTheStoreRefusesHasNotHappened) {
  store_.refuses = true;
  EXPECT_EQ(Create("a").code(), StatusCode::kUnavailable);
  EXPECT_EQ(namespaces_.Skip().code(), StatusCode::kUnavailable);
  EXPECT_EQ(namespaces_.registry().size(), 0U);
  EXPECT_EQ(namespaces_.registry().version(), 0U);
  EXPECT_EQ(Published(), 0U);
  EXPECT_EQ(metrics_.store_errors.value(), 2U);
}

TEST_F(DurableNamespacesTest, NothingChangesInAnOlderCopy) {
  ASSERT_EQ(Create("a"), OkStatus());
  age_.OnRegistered({NodeId(1), 11}, /*names_us=*/true);
  age_.OnHeard({NodeId(1), 11});
  (void)age_.OnAhead({NodeId(1), 11}, "s", ViewVersion(2, 2), TimePoint());
  EXPECT_EQ(Create("b").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_.changes.size(), 1U);
  EXPECT_EQ(namespaces_.Skip(), OkStatus()) << "an operator has accepted it";
  EXPECT_EQ(Published(), 1U + kNumbersSkipped);
}

}  // namespace
}  // namespace ems::controller
