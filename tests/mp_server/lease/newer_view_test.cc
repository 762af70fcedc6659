// What must hold: however many requests have a newer view, it is asked for once in a while; other
// servers are asked when asking the controller has not helped; and one that comes once is
// forgotten.
#include "mp_server/lease/newer_view.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

using Ask = NewerView::Ask;

class NewerViewTest : public ::testing::Test {
 protected:
  Ask After(Duration time, int requests = 1) {
    clock_.Advance(time);
    for (int i = 0; i < requests; ++i) pokes_ += newer_.Note(clock_.Now()) ? 1 : 0;
    return newer_.Take(clock_.Now());
  }

  ManualClock clock_;
  NewerView newer_;
  int pokes_ = 0;
};

TEST_F(NewerViewTest, NobodyIsAskedWhereNoRequestHasShownOne) {
  EXPECT_EQ(newer_.Take(clock_.Now()), Ask::kNobody);
}

TEST_F(NewerViewTest, TheControllerFirstThenOtherServersToo) {
  EXPECT_EQ(After(NewerView::kEvery), Ask::kController);
  EXPECT_EQ(newer_.Take(clock_.Now()), Ask::kNobody) << "no request since";
  EXPECT_EQ(After(NewerView::kEvery), Ask::kControllerAndPeers);
  EXPECT_EQ(After(NewerView::kEvery), Ask::kControllerAndPeers);
}

TEST_F(NewerViewTest, ManyRequestsAreOne) {
  for (int i = 0; i < 100; ++i) (void)After(NewerView::kEvery / 100, 50);
  EXPECT_LE(pokes_, 2);
  EXPECT_GE(pokes_, 1);
}

TEST_F(NewerViewTest, AfterAViewOrAWhileItBeginsAnew) {
  (void)After(NewerView::kEvery);
  newer_.OnInstalled();
  EXPECT_EQ(After(NewerView::kEvery), Ask::kController);
  EXPECT_EQ(After(NewerView::kForgotten), Ask::kController);
}

}  // namespace
}  // namespace ems::server
