// What must hold: who follows the list of versions by change has the list; when a version was used
// last outlives the controller, at the cost of few writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "cluster/model_list.h"
#include "common/fail_point.h"
#include "mp_controller/model_state.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/model_life.h"

namespace ems::controller {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;

using ModelChangesTest = ModelLifeTest;

TEST_F(ModelChangesTest, WhoFollowsTheListIsToldWhatHasChanged) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  for (const char* version : {"v1", "v2", "v3"}) ASSERT_TRUE(life.Add(Sample(version)).ok());
  const v1::ListModelsReply whole = life.Changes(0);
  EXPECT_FALSE(whole.changes());
  EXPECT_EQ(whole.models_size(), 3);
  v1::RemoveModelReply removed;
  life.Prefetch(1);
  ASSERT_TRUE(life.state->RemoveModel(Ref(2), &removed).ok());
  const v1::ListModelsReply changes = life.Changes(whole.number());
  EXPECT_TRUE(changes.changes());
  ASSERT_EQ(changes.models_size(), 1);
  EXPECT_EQ(changes.models(0).ref().id(), 1U);
  EXPECT_EQ(changes.models(0).job().state(), v1::PULL_RUNNING);
  EXPECT_THAT(changes.removed(), ElementsAre(2));
  EXPECT_EQ(changes.versions(), 2U);
  EXPECT_EQ(life.Changes(changes.number()).models_size(), 0);
  life.Use(3);
  EXPECT_EQ(life.Changes(changes.number()).models_size(), 0) << "uses are not told";
}

// Everything that can happen to versions, at random: a list that is followed is the one there is.
TEST_F(ModelChangesTest, AListThatIsFollowedNeverDiffersFromTheWholeOne) {
  auto life = std::make_unique<Life>(dir.path(), &clock);
  life->View(1, 1);
  ModelList followed;
  std::mt19937_64 random(3);
  std::vector<uint32_t> changed, gone;
  int versions = 0;
  for (int step = 0; step < 600; ++step) {
    const auto id = static_cast<uint32_t>(1 + random() % 40);
    v1::ModelStatus status;
    v1::RemoveModelReply reply;
    v1::PrefetchRequest prefetch;
    v1::PinModelRequest pin;
    *prefetch.mutable_ref() = *pin.mutable_ref() = Ref(id);
    prefetch.set_priority(static_cast<uint32_t>(random() % 5));
    pin.set_pinned(random() % 2 == 0);
    switch (random() % 8) {
      case 0:
        (void)life->Add(Sample(fmt::format("v{}", ++versions)));
        break;
      case 1:
        (void)life->state->Prefetch(prefetch, &status);
        break;
      case 2:
        (void)life->state->PinModel(pin, &status);
        break;
      case 3:
        (void)life->state->CancelPrefetch(Ref(id), &status);
        break;
      case 4:
        if (random() % 4 == 0) (void)life->state->RemoveModel(Ref(id), &reply);
        break;
      case 5: {
        v1::ReportPullRequest report = life->Report(1, 1, 4, true);
        report.set_model_id(id);
        report.set_job(1 + random() % 3);
        (void)life->Take(report);
        break;
      }
      case 6:
        clock.Advance(std::chrono::minutes(30));
        life->state->Tick();
        break;
      default:
        if (random() % 20 != 0) break;
        life.reset();
        clock.Advance(seconds(1));
        life = std::make_unique<Life>(dir.path(), &clock);
        life->View(1, 1);
    }
    if (random() % 3 == 0) continue;  // it does not look each time
    ASSERT_EQ(followed.Apply(life->Changes(followed.number()), &changed, &gone), OkStatus())
        << step;
    const v1::ListModelsReply whole = life->Changes(0);
    ASSERT_EQ(followed.ids().size(), static_cast<size_t>(whole.models_size())) << step;
    for (const v1::ModelStatus& row : whole.models()) {
      ASSERT_NE(followed.Find(row.ref().id()), nullptr);
      ASSERT_EQ(ModelRowHash(*followed.Find(row.ref().id())), ModelRowHash(row)) << step;
    }
  }
}

TEST_F(ModelChangesTest, AgeingGoesOnOverARestart) {
  {
    Life life(dir.path(), &clock);
    for (const char* version : {"v1", "v2", "v3"}) ASSERT_TRUE(life.Add(Sample(version)).ok());
    clock.Advance(hours(20));
    life.Use(2);
    life.state->Tick();
  }
  Life life(dir.path(), &clock);
  EXPECT_EQ(life.Get(Ref(1)).unused_ms(), uint64_t{20} * 3'600'000);
  EXPECT_EQ(life.Get(Ref(1)).age_ms(), uint64_t{20} * 3'600'000);
  EXPECT_EQ(life.Get(Ref(2)).unused_ms(), 0U);
  clock.Advance(hours(5));
  life.state->Tick();
  const v1::ListModelsReply left = life.Changes(0);
  ASSERT_EQ(left.models_size(), 2) << "v1, which nobody has used for more than a day, is gone";
  EXPECT_EQ(left.models(0).ref().version(), "v2");
}

TEST_F(ModelChangesTest, UsesAreStoredOnceAMinuteHoweverManyThereAre) {
  Life life(dir.path(), &clock);
  for (const char* version : {"v1", "v2"}) ASSERT_TRUE(life.Add(Sample(version)).ok());
  const auto use_for = [&](int times) {
    for (int i = 0; i < times; ++i) {
      life.Use(1);
      life.Use(2);
      clock.Advance(seconds(1));
      life.state->Tick();
    }
  };
  life.state->Tick();
  ASSERT_EQ(ArmFailPoints("rows.write=error@2"), OkStatus());
  use_for(59);
  use_for(59);
  EXPECT_FALSE(life.Add(Sample("v3")).ok()) << "the second write since then";
  ASSERT_EQ(ArmFailPoints(""), OkStatus());
}

TEST_F(ModelChangesTest, AUseThatTheDiskRefusesIsStoredWithTheNextOnes) {
  {
    Life life(dir.path(), &clock);
    ASSERT_TRUE(life.Add(Sample("v1")).ok());
    clock.Advance(hours(3));
    life.Use(1);
    ASSERT_EQ(ArmFailPoints("rows.write=error@1"), OkStatus());
    life.state->Tick();
    ASSERT_EQ(ArmFailPoints(""), OkStatus());
    clock.Advance(std::chrono::minutes(1));
    life.state->Tick();
  }
  Life life(dir.path(), &clock);
  EXPECT_EQ(life.Get(Ref(1)).unused_ms(), 60'000U);
}

}  // namespace
}  // namespace ems::controller
