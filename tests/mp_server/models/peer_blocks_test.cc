// What must hold: a block comes from the owner of its slot, whole and as it is there; a miss is no
// error, and a server that cannot be asked is one.
#include "mp_server/models/peer_blocks.h"

#include <gtest/gtest.h>

#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"

namespace ems::server {
namespace {

using std::chrono::seconds;
using testing::MemoryServer;

constexpr NamespaceRef kSpace{NamespaceId(3), 1};
constexpr SlotId kPlace(9);

class PeerBlocksTest : public ::testing::Test {
 protected:
  void Own(const std::string& address) {
    SlotTable slots;
    for (uint16_t slot = 0; slot < kSlotCount; ++slot) slots.set_owner(SlotId(slot), NodeId(2));
    std::vector<NodeInfo> nodes(1);
    nodes[0].id = NodeId(2);
    nodes[0].data_address = address;
    view_ = *DhtView::Make(ViewVersion(1, ++epoch_), nodes, slots, false);
  }
  Result<bool> Read(const std::string& key, size_t bytes) {
    buffer_.assign(bytes, std::byte{0});
    return peers_.Read(*view_, kSpace, kPlace, key, buffer_, Deadline::After(seconds(5)));
  }

  std::shared_ptr<const DhtView> view_;
  uint64_t epoch_ = 0;
  PeerBlocks peers_;
  std::vector<std::byte> buffer_;
};

TEST_F(PeerBlocksTest, ABlockComesWholeOverAConnectionThatIsKept) {
  MemoryServer peer;
  Own(peer.address());
  const std::string block(200'000, 'b');
  peer.store.Insert("there", block);
  for (int i = 0; i < 3; ++i) {
    const auto there = Read("there", block.size());
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_TRUE(*there);
    EXPECT_EQ(AsText(buffer_), block);
  }
  EXPECT_EQ(peer.store.counts().sessions, 1);
}

TEST_F(PeerBlocksTest, WhatIsNotThereOrOfAnotherLengthIsAMiss) {
  MemoryServer peer;
  Own(peer.address());
  peer.store.Insert("short", "b");
  EXPECT_FALSE(Read("absent", 10).value());
  EXPECT_FALSE(Read("short", 10).value());
  peer.store.Insert("short", std::string(10, 'b'));
  EXPECT_TRUE(Read("short", 10).value()) << "the connection is of use";
}

TEST_F(PeerBlocksTest, WhoIsNotTheOwnerOrNotThereCannotBeAsked) {
  view_ = *DhtView::Make(ViewVersion(1, ++epoch_), {}, SlotTable(), false);
  EXPECT_EQ(Read("k", 1).status().code(), StatusCode::kUnavailable) << "nobody owns it";
  Own("127.0.0.1:1");
  EXPECT_FALSE(Read("k", 1).ok());
  MemoryServer peer;
  peer.store.gate = [](const wire::FrameHeader&, SlotId slot) {
    EXPECT_EQ(slot, kPlace);
    return fabric::Outcome{.status = wire::WireStatus::kWrongOwner};
  };
  Own(peer.address());
  EXPECT_EQ(Read("k", 1).status().code(), StatusCode::kUnavailable);
}

// As the first asking finds it; asked to look, the owner has evicted it.
TEST_F(PeerBlocksTest, WhatIsDamagedIsAskedForOnceMoreWithALookAtIt) {
  MemoryServer peer;
  Own(peer.address());
  peer.store.Insert("k", "whole");
  std::vector<bool> looked;
  bool mended = false;
  peer.store.gate = [&](const wire::FrameHeader& header, SlotId) {
    looked.push_back((header.flags & wire::kFlagCheck) != 0);
    peer.store.damaged = !(looked.back() && mended);
    return fabric::Outcome{};
  };
  EXPECT_EQ(Read("k", 5).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(looked, (std::vector{false, true}));
  mended = true;
  EXPECT_TRUE(Read("k", 5).value());
  EXPECT_EQ(looked, (std::vector{false, true, false, true}));
  EXPECT_EQ(AsText(buffer_), "whole");
}

TEST_F(PeerBlocksTest, AServerThatWasRestartedIsFoundAgain) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  {
    MemoryServer peer(options);
    Own(peer.address());
    options.listen = peer.address();
    peer.store.Insert("k", "v");
    EXPECT_TRUE(Read("k", 1).value());
  }
  MemoryServer peer(options);
  ASSERT_EQ(peer.status, OkStatus());
  peer.store.Insert("k", "v");
  EXPECT_FALSE(Read("k", 1).ok()) << "over the connection of before";
  EXPECT_TRUE(Read("k", 1).value());
}

TEST_F(PeerBlocksTest, ASilentServerCostsNoMoreThanTheDeadline) {
  testing::ScriptedServer silent([](testing::WirePeer* peer, int) {
    if (testing::ServeHello(peer)) (void)peer->WaitClosed(std::chrono::milliseconds(1500));
  });
  Own(silent.address());
  std::vector<std::byte> into(1);
  const auto there = peers_.Read(*view_, kSpace, kPlace, "k", into,
                                 Deadline::After(std::chrono::milliseconds(200)));
  EXPECT_EQ(there.status().code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ems::server
