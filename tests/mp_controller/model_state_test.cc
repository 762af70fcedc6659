// What must hold: versions, pins, jobs and digests survive a restart; a job ends when every server
// of the view of the moment has nothing left to do; a source that has changed is noticed; bad
// requests change nothing.
#include "mp_controller/model_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/sha256.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/model_life.h"

namespace ems::controller {
namespace {

using model::FirstRead;
using model::Manifest;
using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ModelStateTest = ModelLifeTest;

TEST_F(ModelStateTest, VersionsPinsJobsAndDigestsSurviveARestart) {
  {
    Life life(dir.path(), &clock);
    life.View(1, 2);
    ASSERT_TRUE(life.Add(Sample("v1")).ok());
    ASSERT_TRUE(life.Add(Sample("v2")).ok());
    v1::PinModelRequest pin;
    *pin.mutable_ref() = Ref(2);
    pin.set_pinned(true);
    v1::ModelStatus reply;
    ASSERT_TRUE(life.state->PinModel(pin, &reply).ok());
    life.Prefetch(1, 7);
    ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 2, Digest(2))).ok());
    ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 2, false), 0, Digest(9))).ok());
  }
  clock.Advance(std::chrono::seconds(1));
  Life life(dir.path(), &clock);
  life.View(1, 2);
  EXPECT_EQ(life.Get(Ref("base", "")).ref().version(), "v2") << "the newest";
  EXPECT_TRUE(life.Get(Ref(2)).pinned());
  const v1::ModelStatus one = life.Get(Ref("base", "v1"));
  EXPECT_EQ(one.job().state(), v1::PULL_RUNNING);
  EXPECT_EQ(one.job().priority(), 7U);
  EXPECT_EQ(one.blocks_known(), 2U);
  bool news = false;
  const v1::GetDigestsReply digests = life.Digests(1, 0, &news);
  EXPECT_THAT(digests.blocks(), ElementsAre(2, 0)) << "in the order in which they became known";
  EXPECT_EQ(digests.digests(), std::string(AsText(Digest(2))) + std::string(AsText(Digest(9))));
  ASSERT_TRUE(life.Add(Sample("v3")).ok());
  EXPECT_EQ(life.Get(Ref("base", "")).ref().id(), 3U) << "ids are used once";
  v1::ModelManifest manifest;
  ASSERT_TRUE(life.state->GetManifest(Ref(1), &manifest).ok());
  EXPECT_EQ(*model::FromProto(manifest), Sample("v1"));
}

TEST_F(ModelStateTest, AJobEndsWhenEveryServerOfTheViewHasFinished) {
  Life life(dir.path(), &clock);
  life.View(1, 2);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  EXPECT_EQ(life.Prefetch(1).job().state(), v1::PULL_RUNNING);
  bool active = false;
  ASSERT_TRUE(life.Take(life.Report(1, 1, 3, true), &active).ok());
  EXPECT_TRUE(active) << "the other one has not";
  // Server 2 dies: what it was to do is server 1's, which has to look at it again.
  life.View(2, 1);
  life.state->Tick();
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  ASSERT_TRUE(life.Take(life.Report(1, 2, 4, true), &active).ok());
  EXPECT_FALSE(active);
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_DONE);
  EXPECT_EQ(job.blocks_done(), 4U);
  EXPECT_EQ(job.source_bytes(), 400U);
  EXPECT_EQ(life.Prefetch(1).job().number(), 2U) << "a new job, for what may be missing by now";
}

TEST_F(ModelStateTest, AServerThatHadFinishedLeavingEndsTheJobAtTheNextTick) {
  Life life(dir.path(), &clock);
  life.View(1, 2);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  ASSERT_TRUE(life.Take(life.Report(2, 1, 1, false)).ok());
  ASSERT_TRUE(life.Take(life.Report(1, 2, 4, true)).ok()) << "it has seen the next view already";
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  life.View(2, 1);
  life.state->Tick();
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_DONE);
  EXPECT_EQ(life.Get(Ref(1)).job().source_bytes(), 500U) << "what was read counts, whoever read it";
}

TEST_F(ModelStateTest, JoiningAJobRaisesItsPriorityAndCancellingEndsIt) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1, 5);
  const uint64_t number = life.Number();
  EXPECT_EQ(life.Prefetch(1, 3).job().priority(), 5U);
  EXPECT_EQ(life.Number(), number) << "nothing has changed";
  EXPECT_EQ(life.Prefetch(1, 8).job().priority(), 8U);
  EXPECT_GT(life.Number(), number);
  v1::ModelStatus reply;
  ASSERT_TRUE(life.state->CancelPrefetch(Ref(1), &reply).ok());
  EXPECT_EQ(reply.job().state(), v1::PULL_CANCELLED);
  bool active = true;
  ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 1, Digest(1)), &active).ok());
  EXPECT_FALSE(active);
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 1U) << "what was learned counts";
}

TEST_F(ModelStateTest, ADigestThatDiffersIsRefusedAndTheOthersAreTaken) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 1, Digest(1))).ok());
  ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 1, Digest(1))).ok());
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 1U) << "told twice, known once";
  const Status refused =
      life.Take(life.With(life.With(life.Report(1, 1, 2, true), 1, Digest(2)), 0, Digest(0)));
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(refused)), HasSubstr("source has changed: bytes 100+100 of w"));
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 2U) << "block 0, which came with it, is known";
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING) << "the server reads again";
  v1::ReportPullRequest twice = life.With(life.Report(1, 1, 1, false), 1, Digest(2));
  twice.set_error_code(static_cast<uint32_t>(StatusCode::kFailedPrecondition));
  twice.set_error("the source has changed");
  (void)life.Take(twice);
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_FAILED) << "and says so if they come again";
}

TEST_F(ModelStateTest, DigestsComeInTurnAndListsOnlyWhenTheyHaveChanged) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  bool news = true;
  life.Digests(1, 0, &news);
  EXPECT_FALSE(news);
  life.Prefetch(1);
  ASSERT_TRUE(
      life.Take(life.With(life.With(life.Report(1, 1, 1, false), 3, Digest(3)), 1, Digest(1)))
          .ok());
  const v1::GetDigestsReply rest = life.Digests(1, 1, &news);
  EXPECT_TRUE(news);
  EXPECT_THAT(rest.blocks(), ElementsAre(1));
  EXPECT_EQ(rest.known(), 2U);
  v1::ListModelsRequest list;
  list.set_since(life.Number());
  v1::ListModelsReply reply;
  ASSERT_TRUE(life.state->ListModels(list, &reply, &news).ok());
  EXPECT_FALSE(news);
  list.set_since(life.Number() - 1);
  ASSERT_TRUE(life.state->ListModels(list, &reply, &news).ok());
  EXPECT_TRUE(news);
  EXPECT_EQ(reply.models_size(), 1);
}

TEST_F(ModelStateTest, AddingAgainIsTheSameOrRefused) {
  Life life(dir.path(), &clock);
  EXPECT_EQ(life.Add(Sample("v1"))->ref().id(), 1U);
  EXPECT_EQ(life.Add(Sample("v1"))->ref().id(), 1U);
  Manifest other = Sample("v1");
  other.files[0].tag = "changed";
  EXPECT_EQ(life.Add(other).status().code(), StatusCode::kAlreadyExists);
  Manifest bad = Sample("v9");
  bad.blocks.pop_back();
  EXPECT_EQ(life.Add(bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(life.Get(Ref("base", "")).ref().version(), "v1");
}

TEST_F(ModelStateTest, WhatDiffersIsNamed) {
  Life life(dir.path(), &clock);
  Manifest there = Sample("v1");
  there.files[0].sum = "md5:0123456789abcdef0123456789abcdef";
  ASSERT_TRUE(life.Add(there).ok());
  const auto refusal = [&](const Manifest& asked) { return ToString(life.Add(asked).status()); };
  EXPECT_THAT(refusal(Sample("v1")), HasSubstr("other sums of the same files"));
  Manifest cut = there;
  cut.blocks = {{0, 0, 400, {}}};
  EXPECT_THAT(refusal(cut), HasSubstr("cut into other blocks, of 16 MiB at most"));
  Manifest other = there;
  other.files[0].tag = "changed";
  EXPECT_THAT(refusal(other), HasSubstr("with other files"));
  other = there;
  other.files.push_back({"more", 0, "t"});
  EXPECT_THAT(refusal(other), HasSubstr("with other files"));
}

TEST_F(ModelStateTest, TheLastAddDecidesOnFirstReadsUntilItIsTouched) {
  {
    Life life(dir.path(), &clock);
    ASSERT_TRUE(life.Add(Sample("v1", FirstRead::kOnce)).ok());
    const uint64_t list = life.Number();
    FirstRead before = FirstRead::kOnce;
    for (const FirstRead one :
         {FirstRead::kTwice, FirstRead::kOnce, FirstRead::kTwiceUnlessChecked}) {
      const auto added = life.Add(Sample("v1", one), /*may_lower=*/true);
      ASSERT_TRUE(added.ok()) << added.status();
      EXPECT_EQ(added->ref().id(), 1U);
      EXPECT_EQ(static_cast<int>(added->source().first_read()), static_cast<int>(one));
      EXPECT_EQ(static_cast<int>(added->first_read_before()), static_cast<int>(before));
      EXPECT_TRUE(added->has_first_read_before()) << "a change is said";
      before = one;
    }
    EXPECT_GT(life.Number(), list) << "who follows the list is told";
    EXPECT_FALSE(life.Add(Sample("v1", before), true)->has_first_read_before());
  }
  Life life(dir.path(), &clock);
  v1::ModelManifest manifest;
  ASSERT_TRUE(life.state->GetManifest(Ref(1), &manifest).ok());
  EXPECT_EQ(manifest.source().first_read(), v1::FIRST_READ_TWICE_UNLESS_CHECKED);
  EXPECT_EQ(life.Add(Sample("v1", FirstRead::kOnce), true)->source().first_read(),
            v1::FIRST_READ_TWICE_UNLESS_CHECKED)
      << "who knows what was done with it before the controller was restarted";
}

TEST_F(ModelStateTest, NoDefaultTakesProtectionAway) {
  Life life(dir.path(), &clock);
  ASSERT_TRUE(life.Add(Sample("v1", FirstRead::kTwice)).ok());
  for (const FirstRead one : {FirstRead::kOnce, FirstRead::kTwiceUnlessChecked}) {
    const auto again = life.Add(Sample("v1", one));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->source().first_read(), v1::FIRST_READ_TWICE);
    EXPECT_FALSE(again->has_first_read_before());
  }
  ASSERT_TRUE(life.Add(Sample("v2", FirstRead::kOnce)).ok());
  EXPECT_EQ(life.Add(Sample("v2", FirstRead::kTwiceUnlessChecked))->source().first_read(),
            v1::FIRST_READ_TWICE_UNLESS_CHECKED)
      << "but it may add some";
}

TEST_F(ModelStateTest, WhoAsksForSomethingElseBesidesChangesNoFirstReads) {
  Life life(dir.path(), &clock);
  ASSERT_TRUE(life.Add(Sample("v1", FirstRead::kTwiceUnlessChecked)).ok());
  ASSERT_TRUE(life.Add(Sample("v2", FirstRead::kOnce)).ok());
  const std::vector<std::function<void(Manifest*)>> changes = {
      [](Manifest* manifest) { manifest->source.url = "https://h/p/"; },
      [](Manifest* manifest) { manifest->source.bytes_per_s_max = 5'000'000; },
      [](Manifest* manifest) { manifest->source.credentials = "other"; },
      [](Manifest* manifest) { manifest->name_space = "other"; }};
  for (const auto& change : changes) {
    Manifest lower = Sample("v1", FirstRead::kOnce);
    change(&lower);
    const auto kept = life.Add(lower, true);
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(kept->source().first_read(), v1::FIRST_READ_TWICE_UNLESS_CHECKED);
    EXPECT_FALSE(kept->has_first_read_before());
    Manifest higher = Sample("v2", FirstRead::kTwice);
    change(&higher);
    const std::string refused = ToString(life.Add(higher).status());
    EXPECT_THAT(refused, HasSubstr("unverified, with another URL, credentials, rate or namespace"));
    EXPECT_EQ(life.Get(Ref("base", "v2")).source().first_read(), v1::FIRST_READ_ONCE);
  }
}

TEST_F(ModelStateTest, WhatMayHaveBeenReadOnceIsNeverTakenForVerified) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  v1::ModelStatus reply;
  v1::PinModelRequest pin;
  const std::vector<std::function<void(uint32_t)>> touches = {
      [&](uint32_t id) { (void)life.Prefetch(id); },
      [&](uint32_t id) {
        *pin.mutable_ref() = Ref(id);
        for (const bool pinned : {true, false}) {
          pin.set_pinned(pinned);
          ASSERT_TRUE(life.state->PinModel(pin, &reply).ok());
        }
      },
      [&](uint32_t id) { ASSERT_TRUE(life.state->UseModel(Ref(id), &reply).ok()); }};
  for (const auto& touch : touches) {
    const std::string once = fmt::format("v{}", life.Number());
    const auto added = life.Add(Sample(once, FirstRead::kOnce));
    ASSERT_TRUE(added.ok()) << added.status();
    touch(added->ref().id());
    const Status refused = life.Add(Sample(once, FirstRead::kTwice)).status();
    EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
    EXPECT_THAT(ToString(refused), HasSubstr("unverified"));
    const auto again = life.Add(Sample(once, FirstRead::kTwiceUnlessChecked));
    ASSERT_TRUE(again.ok()) << "by default, adding again does not fail: " << again.status();
    EXPECT_EQ(again->source().first_read(), v1::FIRST_READ_ONCE) << "nor does it pretend";
    const std::string twice = once + "-twice";
    const auto other = life.Add(Sample(twice, FirstRead::kTwiceUnlessChecked));
    ASSERT_TRUE(other.ok()) << other.status();
    touch(other->ref().id());
    for (const FirstRead one : {FirstRead::kOnce, FirstRead::kTwice}) {
      const auto kept = life.Add(Sample(twice, one), /*may_lower=*/true);
      ASSERT_TRUE(kept.ok()) << kept.status();
      EXPECT_EQ(kept->source().first_read(), v1::FIRST_READ_TWICE_UNLESS_CHECKED);
    }
  }
}

TEST_F(ModelStateTest, RemovingTakesEverythingAndNotWhatIsPinned) {
  {
    Life life(dir.path(), &clock);
    life.View(1, 1);
    ASSERT_TRUE(life.Add(Sample("v1")).ok());
    life.Prefetch(1);
    ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 3, Digest(3))).ok());
    v1::PinModelRequest pin;
    *pin.mutable_ref() = Ref(1);
    pin.set_pinned(true);
    v1::ModelStatus status;
    v1::RemoveModelReply reply;
    ASSERT_TRUE(life.state->PinModel(pin, &status).ok());
    EXPECT_EQ(life.state->RemoveModel(Ref(1), &reply).code(), StatusCode::kFailedPrecondition);
    pin.set_pinned(false);
    ASSERT_TRUE(life.state->PinModel(pin, &status).ok());
    EXPECT_EQ(life.state->RemoveModel(Ref("base", ""), &reply).code(), StatusCode::kInvalidArgument)
        << "the newest is not meant by accident";
    ASSERT_TRUE(life.state->RemoveModel(Ref("base", "v1"), &reply).ok());
    bool active = true;
    EXPECT_TRUE(life.Take(life.Report(1, 1, 1, false), &active).ok());
    EXPECT_FALSE(active);
    EXPECT_EQ(life.state->GetModel(Ref(1), &status).code(), StatusCode::kNotFound);
  }
  Life life(dir.path(), &clock);
  int rows = 0;
  ASSERT_TRUE(life.rows
                  ->ForEach([&](std::string_view, std::string_view) {
                    ++rows;
                    return OkStatus();
                  })
                  .ok());
  EXPECT_EQ(rows, 1) << "the next id alone";
}

TEST_F(ModelStateTest, OldVersionsThatNobodyUsesGoAndTheNewestStays) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  for (const char* version : {"v1", "v2", "v3", "v4"}) ASSERT_TRUE(life.Add(Sample(version)).ok());
  v1::PinModelRequest pin;
  *pin.mutable_ref() = Ref(2);
  pin.set_pinned(true);
  v1::ModelStatus status;
  ASSERT_TRUE(life.state->PinModel(pin, &status).ok());
  clock.Advance(kUnusedMax - hours(1));
  ASSERT_TRUE(life.state->UseModel(Ref(3), &status).ok());
  clock.Advance(hours(2));
  life.state->Tick();
  v1::ListModelsReply reply;
  bool news = false;
  ASSERT_TRUE(life.state->ListModels({}, &reply, &news).ok());
  std::vector<std::string> left;
  for (const v1::ModelStatus& model : reply.models()) left.push_back(model.ref().version());
  EXPECT_THAT(left, ElementsAre("v2", "v3", "v4"));
}

TEST_F(ModelStateTest, ReportsAgainstTheRulesAreRefused) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  EXPECT_EQ(life.Take(life.With(life.Report(1, 1, 1, false), 4, Digest(1))).code(),
            OkStatus().code());
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_FAILED) << "a block that does not exist";
  life.Prefetch(1);
  v1::ReportPullRequest report = life.Report(1, 1, 1, false);
  report.set_job(2);
  report.add_blocks(1);
  (void)life.Take(report);
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 0U) << "a block without its digest";
  v1::PrefetchRequest high;
  *high.mutable_ref() = Ref(1);
  high.set_priority(kPullPriorityMax + 1);
  v1::ModelStatus status;
  EXPECT_EQ(life.state->Prefetch(high, &status).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(life.state->GetModel(Ref("a b", "v"), &status).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(life.state->GetModel(Ref("base", "none"), &status).code(), StatusCode::kNotFound);
}

// Ids are used again in another store, and in one that was made again.
TEST_F(ModelStateTest, AReportOfAnotherVersionThatHadTheIdIsRefused) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  v1::ReportPullRequest report = life.With(life.Report(1, 1, 4, true), 1, Digest(1));
  report.set_manifest(model::ManifestChecksum(Sample("v2")));
  EXPECT_EQ(life.Take(report).code(), StatusCode::kNotFound);
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 0U);
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  report.set_manifest(model::ManifestChecksum(Sample("v1", FirstRead::kTwice)));
  EXPECT_EQ(life.Take(report), OkStatus()) << "how it is read does not matter";
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 1U);
}

}  // namespace
}  // namespace ems::controller
