// What must hold: versions, pins, jobs and digests survive a restart; a job ends when every server
// of the view of the moment has nothing left to do; a source that has changed is noticed; bad
// requests change nothing.
#include "mp_controller/model_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/model.pb.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using model::BlockDigest;
using model::Manifest;
using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Duration kUnusedMax = hours(24);

Manifest Sample(const std::string& version) {
  Manifest manifest;
  manifest.model = "base";
  manifest.version = version;
  manifest.name_space = "models";
  manifest.source.url = "http://h/p/";
  manifest.files = {{"w", 400, version}};
  for (uint32_t i = 0; i < 4; ++i) manifest.blocks.push_back({0, i * uint64_t{100}, 100, {}});
  return manifest;
}

BlockDigest Digest(uint8_t value) { return BlockDigest{std::byte{value}}; }

v1::ModelRef Ref(uint32_t id) {
  v1::ModelRef ref;
  ref.set_id(id);
  return ref;
}

v1::ModelRef Ref(const std::string& model, const std::string& version) {
  v1::ModelRef ref;
  ref.set_model(model);
  ref.set_version(version);
  return ref;
}

// One life of a controller on a folder, without threads or sockets.
struct Life {
  explicit Life(const std::string& folder, ManualClock* clock) {
    auto opened = DurableRows::Open(folder, "");
    EXPECT_TRUE(opened.ok()) << opened.status();
    rows = std::move(*opened);
    state =
        std::make_unique<ModelState>(ModelState::Parts{clock, rows.get(), &publisher}, kUnusedMax);
    EXPECT_TRUE(state->Start().ok());
  }
  // Servers with the boot ids 1 to `servers`, in a view with this epoch.
  void View(uint64_t epoch, uint32_t servers) {
    std::vector<NodeInfo> nodes;
    SlotTable slots;
    for (uint32_t i = 1; i <= servers; ++i) {
      NodeInfo node;
      node.id = NodeId(i);
      node.name = std::to_string(i);
      node.boot_id = i;
      nodes.push_back(node);
      slots.set_owner(SlotId(static_cast<uint16_t>(i)), NodeId(i));
    }
    publisher.Publish(*DhtView::Make(ViewVersion(1, epoch), nodes, slots, false));
  }
  Result<v1::ModelStatus> Add(const Manifest& manifest) {
    v1::AddModelRequest request;
    ToProto(manifest, request.mutable_manifest());
    v1::ModelStatus reply;
    const Status status = state->AddModel(request, &reply);
    if (!status.ok()) return status;
    return reply;
  }
  v1::ModelStatus Get(const v1::ModelRef& ref) {
    v1::ModelStatus reply;
    EXPECT_EQ(state->GetModel(ref, &reply), OkStatus());
    return reply;
  }
  v1::ModelStatus Prefetch(uint32_t id, uint32_t priority = 0) {
    v1::PrefetchRequest request;
    *request.mutable_ref() = Ref(id);
    request.set_priority(priority);
    v1::ModelStatus reply;
    EXPECT_EQ(state->Prefetch(request, &reply), OkStatus());
    return reply;
  }
  // A report of job 1 of model 1.
  static v1::ReportPullRequest Report(uint64_t boot, uint64_t epoch, uint64_t blocks,
                                      bool finished) {
    v1::ReportPullRequest report;
    report.set_boot_id(boot);
    report.set_model_id(1);
    report.set_job(1);
    report.set_term(1);
    report.set_epoch(epoch);
    report.set_finished(finished);
    report.set_blocks_done(blocks);
    report.set_bytes_done(100 * blocks);
    report.set_source_bytes(100 * blocks);
    return report;
  }
  static v1::ReportPullRequest With(v1::ReportPullRequest report, uint32_t block,
                                    const BlockDigest& digest) {
    report.add_blocks(block);
    report.mutable_digests()->append(AsText(digest));
    return report;
  }
  Status Take(const v1::ReportPullRequest& report, bool* active = nullptr) {
    v1::ReportPullReply reply;
    const Status status = state->ReportPull(report, &reply);
    if (active != nullptr) *active = reply.active();
    return status;
  }
  v1::GetDigestsReply Digests(uint32_t id, uint32_t since, bool* news) {
    v1::GetDigestsRequest request;
    *request.mutable_ref() = Ref(id);
    request.set_since(since);
    v1::GetDigestsReply reply;
    EXPECT_EQ(state->GetDigests(request, &reply, news), OkStatus());
    return reply;
  }
  uint64_t Number() {
    v1::ListModelsReply reply;
    bool news = false;
    EXPECT_EQ(state->ListModels({}, &reply, &news), OkStatus());
    return reply.number();
  }

  ViewPublisher publisher{16};
  std::unique_ptr<DurableRows> rows;
  std::unique_ptr<ModelState> state;
};

TEST(ModelStateTest, VersionsPinsJobsAndDigestsSurviveARestart) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, AJobEndsWhenEveryServerOfTheViewHasFinished) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, AServerThatHadFinishedLeavingEndsTheJobAtTheNextTick) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, JoiningAJobRaisesItsPriorityAndCancellingEndsIt) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, AnErrorOfAServerEndsTheJobWithItsWords) {
  const TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  life.View(1, 2);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  v1::ReportPullRequest report = life.Report(2, 1, 0, false);
  report.set_error_code(static_cast<uint32_t>(StatusCode::kPermissionDenied));
  report.set_error("http://h/p/w: 403");
  ASSERT_TRUE(life.Take(report).ok());
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.error(), "http://h/p/w: 403");
  EXPECT_EQ(life.Prefetch(1).job().error(), "") << "the next one tries again";
}

TEST(ModelStateTest, ADigestThatDiffersMeansThatTheSourceHasChanged) {
  const TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 1, Digest(1))).ok());
  ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 1, Digest(1))).ok());
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 1U) << "told twice, known once";
  (void)life.Take(life.With(life.Report(1, 1, 1, false), 1, Digest(2)));
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_THAT(job.error(), HasSubstr("source has changed: bytes 100+100 of w"));
}

TEST(ModelStateTest, DigestsComeInTurnAndListsOnlyWhenTheyHaveChanged) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, AddingAgainIsTheSameOrRefused) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, RemovingTakesEverythingAndNotWhatIsPinned) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, OldVersionsThatNobodyUsesGoAndTheNewestStays) {
  const TempDir dir;
  ManualClock clock;
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

TEST(ModelStateTest, ReportsAgainstTheRulesAreRefused) {
  const TempDir dir;
  ManualClock clock;
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

}  // namespace
}  // namespace ems::controller
