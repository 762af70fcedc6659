#include "mp_controller/publish/view_fanout.h"

#include <gtest/gtest.h>

#include <atomic>

#include "common/thread_pool.h"

namespace ems::controller {
namespace {

std::shared_ptr<const DhtView> View(uint64_t epoch) {
  return *DhtView::Make(ViewVersion(1, epoch), {}, SlotTable(), false);
}

// Holds up whoever tells it of a change, until it is let go.
struct SlowSubscriber final : Subscriber {
  void OnPublished() override {
    ++calls;
    called.Set();
    EXPECT_TRUE(go.WaitFor(std::chrono::seconds(10)));
  }
  void OnClosed() override {}
  std::atomic<int> calls{0};
  StopFlag called, go;
};

TEST(ViewFanoutTest, WhoPublishesWaitsForNoSubscriber) {
  ViewPublisher publisher(10);
  const auto slow = std::make_shared<SlowSubscriber>();
  ASSERT_TRUE(publisher.Subscribe(slow).ok());
  {
    ViewFanout fanout(&publisher);
    publisher.Publish(View(1));
    ASSERT_TRUE(slow->called.WaitFor(std::chrono::seconds(10)));
    for (uint64_t epoch = 2; epoch <= 100; ++epoch) publisher.Publish(View(epoch));
    EXPECT_EQ(slow->calls, 1) << "it is still being told of the first";
    publisher.Close();
    slow->go.Set();
  }
  EXPECT_LE(slow->calls, 2) << "what is published meanwhile makes one round, not one each";
}

TEST(ViewFanoutTest, EndsWhenThePublisherIsClosed) {
  ViewPublisher publisher(10);
  publisher.Publish(View(1));
  ViewFanout fanout(&publisher);
  publisher.Close();
}

}  // namespace
}  // namespace ems::controller
