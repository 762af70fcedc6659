// What must hold: a copy comes whole and into room of its own, or not at all.
#include "mp_server/forward/copy_fetch.h"

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using wire::WireStatus;

class CopyFetchTest : public ForwardTest {
 protected:
  CopyFetchTest() {
    immutable_ = true;
    replicas_ = 2;
    Start(1);
    Start(2);
    Move({1, 2}, 2, {1});
    peers_.SetNodes(*view_);
  }
  Status Fetch(const std::string& key, FetchedCopy* copy) {
    const TieredNamespace objects = Node(1).store().Open(ForwardNode::kNs);
    return FetchCopy(&peers_, NodeId(2), Deadline::After(std::chrono::seconds(5)), &channels_,
                     {ForwardNode::kNs, kSlot, key, view_->version()}, objects, copy);
  }
  PeerCalls peers_;
  PeerCalls::Channels channels_;
};

TEST_F(CopyFetchTest, AValueComesWithItsChecksum) {
  const std::string value(200'000, 'v');
  ASSERT_EQ(Node(2).Put(kSlot, "k", value, false), WireStatus::kOk);
  FetchedCopy copy;
  ASSERT_EQ(Fetch("k", &copy), OkStatus());
  ASSERT_TRUE(copy.found);
  ASSERT_TRUE(copy.reservation);
  EXPECT_EQ(AsText(copy.reservation.value()), value);
  EXPECT_EQ(copy.checksum, Checksum(AsBytes(value)));
}

TEST_F(CopyFetchTest, WhatIsNotThereIsNoError) {
  FetchedCopy copy;
  EXPECT_EQ(Fetch("k", &copy), OkStatus());
  EXPECT_FALSE(copy.found);
}

TEST_F(CopyFetchTest, AServerThatIsGoneIsOne) {
  Kill(2);
  FetchedCopy copy;
  EXPECT_FALSE(Fetch("k", &copy).ok());
  EXPECT_FALSE(copy.found);
}

}  // namespace
}  // namespace ems::server
