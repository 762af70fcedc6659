// What must hold: a configuration that wants no copies has none of it, and otherwise what it says
// is what counts.
#include "mp_server/hot/hot_copies.h"

#include <gtest/gtest.h>

#include "proto/config.pb.h"
#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

class HotCopiesTest : public ForwardTest {
 protected:
  HotCopiesTest() {
    immutable_ = true;
    Start(1);
    Start(2);
    Move({1, 2}, 1);
    config_.set_keep_s(20);
    config_.set_send_bytes_per_s(64 * kMiB);
  }
  std::unique_ptr<HotCopies> Make() {
    return HotCopies::Make(config_, &Node(2).store(), &Node(2).ownership(), &views_,
                           Node(2).metrics().hot());
  }
  config::HotConfig config_;
  ViewCache views_;
};

TEST_F(HotCopiesTest, NoCopiesIsNothing) {
  config_.set_copies(0);
  EXPECT_EQ(Make(), nullptr);
}

TEST_F(HotCopiesTest, ItsThreadEndsWithIt) {
  config_.set_copies(3);
  const auto hot = Make();
  ASSERT_NE(hot, nullptr);
  EXPECT_TRUE(hot->guests()->Admit(ForwardNode::kNs, kSlot, "a"));
  EXPECT_FALSE(hot->keys()->hints().any());
}

}  // namespace
}  // namespace ems::server
