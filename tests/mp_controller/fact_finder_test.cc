// What must hold: the state is that of both loops, and one that is stuck is said and waited for no
// longer than agreed.
#include "mp_controller/fact_finder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/thread_pool.h"
#include "mp_controller/event_loop.h"
#include "mp_controller/model_service.h"
#include "tests/mp_controller/cluster_life.h"
#include "tests/mp_controller/model_life.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

class FactFinderTest : public ::testing::Test {
 protected:
  FactFinder Finder(Duration patience) {
    return FactFinder({.loop = &loop_,
                       .state = cluster_.state.get(),
                       .publisher = &cluster_.publisher,
                       .models = &models_,
                       .patience = patience});
  }

  const TempDir dir_;
  const TempDir models_dir_;
  ManualClock clock_;
  ClusterLife cluster_{dir_.path(), &clock_};
  Life model_life_{models_dir_.path(), &clock_};
  const bool added_ = model_life_.Add(Sample("v1")).ok();
  ModelService models_{model_life_.state.get(), &clock_, kNoCluster};
  EventLoop loop_{"test-ctl", std::chrono::hours(1), [] {}};
};

TEST_F(FactFinderTest, FindsServersNamespacesAndModels) {
  ASSERT_TRUE(added_);
  cluster_.Register("a", 1);
  const Result<std::string> text = Finder(std::chrono::seconds(20)).Json();
  ASSERT_TRUE(text.ok()) << text.status();
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  EXPECT_EQ(json["nodes"][0]["name"], "a");
  EXPECT_EQ(json["namespaces"][0]["name"], "default");
  EXPECT_EQ(json["models"][0]["version"], "v1");
  EXPECT_EQ(json["view"]["term"], 1);
}

TEST_F(FactFinderTest, ALoopThatStandsStillIsNotWaitedForWithoutEnd) {
  StopFlag go_on;
  ASSERT_TRUE(loop_.TryPost([&] { (void)go_on.WaitFor(std::chrono::seconds(20)); }));
  const Result<std::string> none = Finder(std::chrono::milliseconds(5)).Json();
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
  go_on.Set();
  EXPECT_TRUE(Finder(std::chrono::seconds(20)).Json().ok());
}

}  // namespace
}  // namespace ems::controller
