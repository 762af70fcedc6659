// What must hold: keys of a look-up that are not here are asked for once, in one call to each
// server that may have them, and only those.
#include "mp_server/kept_lookup.h"

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using wire::WireStatus;

class KeptLookupTest : public ForwardTest {};

TEST_F(KeptLookupTest, ManyKeysAreAskedForInOneCall) {
  Start(1);
  Start(2);
  Move({1, 2}, 1);
  std::vector<std::string> keys;
  std::map<std::string, uint64_t> there;
  for (int i = 0; i < 1000; ++i) {
    keys.push_back("k" + std::to_string(i));
    if (i % 2 == 0) continue;
    ASSERT_EQ(Node(1).Put(kSlot, keys.back(), std::string(1 + i % 5, 'v')), WireStatus::kOk);
    there[keys.back()] = 1 + static_cast<uint64_t>(i) % 5;
  }
  Move({1, 2}, 2);
  const double before = Node(1).metrics().rpc().bytes_received.value();
  EXPECT_EQ(Node(2).Exist(kSlot, keys), there);
  EXPECT_GT(Node(1).metrics().rpc().bytes_received.value(), before);
  EXPECT_EQ(Node(1).metrics().rpc().accepted.value(), 1);
  EXPECT_EQ(Node(2).metrics().forward().refused.value(), 0);
}

TEST_F(KeptLookupTest, WithoutASlotThatMovedNobodyIsAsked) {
  Start(1);
  Start(2);
  Move({1, 2}, 2);
  ASSERT_EQ(Node(2).Put(kSlot, "k", "v"), WireStatus::kOk);
  EXPECT_EQ(Node(2).Exist(kSlot, {"k", "other"}).size(), 1U);
  EXPECT_EQ(Node(1).metrics().rpc().accepted.value(), 0);
}

TEST_F(KeptLookupTest, ADeadPeerMakesMisses) {
  Start(1);
  Start(2);
  Move({1, 2}, 1);
  Move({1, 2}, 2);
  ASSERT_EQ(Node(2).Put(kSlot, "here", "v"), WireStatus::kOk);
  Kill(1);
  EXPECT_EQ(Node(2).Exist(kSlot, {"here", "there"}).size(), 1U);
}

}  // namespace
}  // namespace ems::server
