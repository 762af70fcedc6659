#include "ems_context/layer_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "common/thread_pool.h"

namespace ems::context {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LayerProgressTest, AFailedBlockIsMissingFromTheLayerThatFailedOn) {
  LayerProgress progress(6, 4);
  progress.Advance(2, {});
  progress.Advance(4, {2});
  progress.Advance(5, {1, 2});
  EXPECT_EQ(progress.ready(), 5u);
  EXPECT_THAT(progress.At(1).missing, IsEmpty());
  EXPECT_EQ(progress.At(1).leading_blocks, 4u);
  EXPECT_THAT(progress.At(2).missing, ElementsAre(2u));
  EXPECT_EQ(progress.At(2).leading_blocks, 2u);
  EXPECT_THAT(progress.At(4).missing, ElementsAre(1u, 2u));
}

TEST(LayerProgressTest, ClosingMarksWhatDidNotArriveFromTheNextLayerOn) {
  LayerProgress progress(6, 2);
  progress.Advance(3, {});
  LoadResult result;
  result.blocks.emplace_back(uint64_t{1});
  result.blocks.emplace_back(Error(StatusCode::kCancelled, "enough"));
  progress.Close(result);
  EXPECT_TRUE(progress.WaitUntil(5, Deadline::After(milliseconds(0))));
  EXPECT_THAT(progress.At(2).missing, IsEmpty());
  EXPECT_THAT(progress.At(3).missing, ElementsAre(1u));
}

TEST(LayerProgressTest, WaitingEndsWithTheLayerOrTheDeadline) {
  LayerProgress progress(2, 1);
  EXPECT_FALSE(progress.WaitUntil(0, Deadline::After(milliseconds(1))));
  Thread other("other", [&] { progress.Advance(1, {}); });
  EXPECT_TRUE(progress.WaitUntil(0, Deadline::After(seconds(20))));
  EXPECT_FALSE(progress.WaitUntil(1, Deadline::After(milliseconds(1))));
}

// The call's outcome is there before the layers are closed: a thread that sees the one must see the
// other.
TEST(LayerLoadTest, AllLayersAreDoneWhenItIsOver) {
  for (const bool cancel : {false, true}) {
    const auto progress = std::make_shared<LayerProgress>(3, 1);
    CallGate gate;
    const auto failed = [](const Status& why) {
      LoadResult result;
      result.blocks.emplace_back(why);
      return result;
    };
    const auto state = std::make_shared<CallState<LoadResult>>(
        Deadline::After(seconds(20)), &gate, failed, [progress](const LoadResult& result) {
          for (int i = 0; i < 10'000; ++i) std::this_thread::yield();
          progress->Close(result);
        });
    const LayerLoad load(SubmittedCall<LoadResult>(state), progress);
    EXPECT_FALSE(load.Done());
    ASSERT_TRUE(state->Begin());
    Thread other("other", [&] { state->Finish(failed(Miss())); });
    if (cancel)
      load.Cancel();
    else
      load.Result();
    EXPECT_EQ(load.ready_layers(), 3u);
    EXPECT_TRUE(load.Done());
    const auto ready = load.WaitLayer(2, Deadline(TimePoint()));
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_THAT(ready->missing, ElementsAre(0u));
  }
}

}  // namespace
}  // namespace ems::context
