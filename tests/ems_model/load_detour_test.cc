// What must hold: when servers, the controller, the source or jobs fail, a load waits for what will
// pass, and reads the source itself only when that is the better way; it says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "ems_model/model_loader.h"
#include "tests/ems_model/fake_pool.h"
#include "tests/support/eventually.h"

namespace ems::model {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LoadDetourTest, WhatIsEvictedAfterAJobTakesAnotherJob) {
  FakeModel model(SmallModel());
  model.BringAll();
  const std::string gone = BlockKey(model.DigestOf(3));
  model.pool.Erase(gone);
  model.catalog.on_start = [&](FakeCatalog* catalog) {
    if (catalog->jobs_started == 2) model.pool.Insert(gone, model.BytesOf(3));
    catalog->job.state = JobState::kDone;
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 2);
}

TEST(LoadDetourTest, WhatDoesNotFitIsReadFromTheSourceAfterOneJob) {
  FakeModel model(SmallModel());
  model.BringAll();
  const std::string gone = BlockKey(model.DigestOf(3));
  model.pool.Erase(gone);
  model.catalog.on_start = [&](FakeCatalog* catalog) {
    catalog->job.state = JobState::kDone;
    catalog->job.source_bytes = model.manifest.bytes();
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 1);
  EXPECT_EQ(stats->source_bytes, model.manifest.blocks[3].bytes);
  EXPECT_THAT(ToString(stats->detour), HasSubstr("room"));
}

TEST(LoadDetourTest, WhatIsLostWithAServerTakesAnotherJobAndNotTheSource) {
  FakeModel model(SmallModel());
  const std::string lost = BlockKey(model.DigestOf(3));
  std::atomic<bool> answers{true};
  std::atomic<int> in_vain{0};
  model.pool.gate = [&](std::string_view key) {
    if (answers || key != lost) return OkStatus();
    ++in_vain;
    return Error(StatusCode::kUnavailable, "no server");
  };
  model.catalog.on_start = [&](FakeCatalog* catalog) {
    if (catalog->jobs_started > 1) return;
    model.BringAll();
    model.pool.Erase(lost);
    answers = false;
    catalog->job.state = JobState::kDone;
    catalog->job.source_bytes = model.manifest.bytes();
  };
  model.catalog.on_digests = [&](FakeCatalog* catalog) {
    if (catalog->job.number != 2) return;
    if (!answers && in_vain >= 5) {
      model.pool.view_number = 2;
      answers = true;
    } else if (answers) {
      model.pool.Insert(lost, model.BytesOf(3));
      catalog->job.state = JobState::kDone;
      catalog->job.source_bytes = model.manifest.blocks[3].bytes;
    }
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 2);
  EXPECT_EQ(stats->source_bytes, 0U) << stats->detour;
}

TEST(LoadDetourTest, WhatJobsBroughtInUnderAnotherViewIsNoSignOfTooLittleRoom) {
  FakeModel model(SmallModel());
  model.BringAll();
  const std::string lost = BlockKey(model.DigestOf(3));
  model.pool.Erase(lost);
  model.catalog.on_start = [&](FakeCatalog* catalog) {
    catalog->job.state = JobState::kDone;
    catalog->job.source_bytes = model.manifest.bytes();
    if (catalog->jobs_started == 2) model.pool.Insert(lost, model.BytesOf(3));
  };
  model.catalog.on_digests = [&](FakeCatalog* catalog) {  // another owner, which does not have it
    if (catalog->jobs_started == 1) model.pool.view_number = 2;
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 2);
  EXPECT_EQ(stats->source_bytes, 0U) << stats->detour;
}

TEST(LoadDetourTest, WhatJobsReadTwiceCountsOnceForWhatDoesNotFit) {
  for (const FirstRead first_read : {FirstRead::kOnce, FirstRead::kTwiceUnlessChecked}) {
    FakeModel model(SmallModel());
    model.manifest.source.first_read = first_read;
    model.BringAll();
    model.pool.Erase(BlockKey(model.DigestOf(3)));
    model.catalog.on_start = [&](FakeCatalog* catalog) {
      catalog->job.state = JobState::kDone;
      catalog->job.source_bytes = model.manifest.bytes() * 6 / 10;
    };
    HostTarget target;
    const Result<LoadStats> stats = model.Load(&target);
    ASSERT_TRUE(stats.ok()) << stats.status();
    ExpectWhole(model, target);
    EXPECT_EQ(model.catalog.jobs_started, first_read == FirstRead::kOnce ? 1 : 2);
  }
}

TEST(LoadDetourTest, APoolThatDoesNotAnswerIsGoneAround) {
  FakeModel model(SmallModel());
  model.BringAll();
  model.pool.gate = [](std::string_view) { return Error(StatusCode::kUnavailable, "no server"); };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, Quick());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(stats->source_bytes, model.manifest.bytes());
  EXPECT_EQ(stats->pool_bytes(), 0U);
  EXPECT_THAT(ToString(stats->detour), HasSubstr("no server"));
  EXPECT_EQ(model.opened, 1);
}

TEST(LoadDetourTest, AServerThatComesBackIsReadAgain) {
  FakeModel model(SmallModel());
  model.BringAll();
  std::atomic<int> refused{0};
  model.pool.gate = [&](std::string_view) {
    return refused.fetch_add(1) < 40 ? Error(StatusCode::kUnavailable, "no server") : OkStatus();
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(stats->source_bytes, 0U);
}

TEST(LoadDetourTest, WithoutAControllerTheSourceIsRead) {
  FakeModel model(SmallModel());
  model.catalog.silent = [] { return Error(StatusCode::kUnavailable, "no controller"); };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, Quick());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_THAT(ToString(stats->detour), HasSubstr("no controller"));
}

TEST(LoadDetourTest, AControllerWithTooMuchToDoIsAskedAgain) {
  FakeModel model(SmallModel());
  model.BringAll();
  int refused = 0;
  model.catalog.silent = [&] {
    return ++refused > 3 ? OkStatus() : Error(StatusCode::kResourceExhausted, "too many calls");
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.opened, 0) << "not the moment to read the source";
}

TEST(LoadDetourTest, ASlowSourceIsWaitedForWhileServersAnswer) {
  FakeModel model({{"a.bin", "some bytes"}, {"b.bin", "more"}});
  model.catalog.on_digests = [&](FakeCatalog* catalog) {
    if (catalog->job.state == JobState::kRunning && model.pool.probes > 0) {
      model.BringAll();
      catalog->job.state = JobState::kDone;
    }
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, Quick());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(stats->source_bytes, 0U);
  EXPECT_GE(stats->waiting, Quick().pool_patience);
}

TEST(LoadDetourTest, AServerThatDiedDoesNotSendALoadToASlowSourceWhenOthersAnswer) {
  FakeModel model({{"a.bin", "some bytes"}, {"b.bin", "more"}});
  model.BringAll();
  const std::string lost = BlockKey(model.DigestOf(1));
  model.pool.Erase(lost);
  std::atomic<int> asked{0};
  model.pool.gate = [&](std::string_view key) {  // its next owner answers from then on
    return key == lost && asked.fetch_add(1) == 0 ? Error(StatusCode::kUnavailable, "no server")
                                                  : OkStatus();
  };
  const TimePoint begin = Clock::System().Now();
  model.catalog.on_digests = [&](FakeCatalog* catalog) {
    if (catalog->job.state != JobState::kRunning ||
        Clock::System().Now() - begin < 3 * Quick().pool_patience)
      return;
    model.pool.Insert(lost, model.BytesOf(1));
    catalog->job.state = JobState::kDone;
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, Quick());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(stats->source_bytes, 0U) << stats->detour;
}

TEST(LoadDetourTest, ASourceThatSendsSteadilyIsWaitedForHoweverLongABlockTakes) {
  FakeModel model({{"a.bin", "some bytes"}, {"b.bin", "more"}});
  LoadOptions options;
  options.pool_patience = milliseconds(50);
  const TimePoint whole = Clock::System().Now() + 12 * options.pool_patience;
  model.catalog.on_digests = [&](FakeCatalog* catalog) {
    if (catalog->job.state != JobState::kRunning) return;
    ++catalog->job.read_bytes;
    if (Clock::System().Now() < whole) return;
    model.BringAll();
    catalog->job.state = JobState::kDone;
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, options);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(stats->source_bytes, 0U) << stats->detour;
}

TEST(LoadDetourTest, ServersThatAreGoneBeforeAnythingIsKnownAreNotWaitedFor) {
  FakeModel model({{"a.bin", "some bytes"}, {"b.bin", "more"}});
  model.pool.gate = [](std::string_view) { return Error(StatusCode::kUnavailable, "no server"); };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, Quick());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_LT(stats->elapsed, 5 * Quick().pool_patience);
  EXPECT_THAT(ToString(stats->detour), HasSubstr("no server"));
}

TEST(LoadDetourTest, ServersThatOnlyAnswerAreNotWaitedForForEver) {
  FakeModel model({{"a.bin", "some bytes"}, {"b.bin", "more"}});
  LoadOptions options;
  options.pool_patience = milliseconds(50);
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, options);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_GE(stats->elapsed, 6 * options.pool_patience);
}

TEST(LoadDetourTest, AnOutageOfTheSourceThatPassesEndsNoLoad) {
  for (const bool fallback : {true, false}) {
    FakeModel model(SmallModel());
    model.catalog.on_start = [&](FakeCatalog* catalog) {
      catalog->job.state = catalog->jobs_started < 3 ? JobState::kFailed : JobState::kDone;
      if (catalog->jobs_started < 3)
        catalog->job.error = Error(StatusCode::kUnavailable, "HTTP 503");
      else
        model.BringAll();
    };
    LoadOptions options;
    if (!fallback) options.pool_patience = milliseconds(1);
    options.fallback_to_source = fallback;
    HostTarget target;
    const Result<LoadStats> stats = model.Load(&target, options);
    ASSERT_TRUE(stats.ok()) << stats.status();
    ExpectWhole(model, target);
    EXPECT_EQ(model.catalog.jobs_started, 3);
    EXPECT_EQ(stats->source_bytes, 0U);
  }
}

TEST(LoadDetourTest, ASourceThatServersCannotReachIsReadAfterSomePatience) {
  FakeModel model(SmallModel());
  model.catalog.on_start = [](FakeCatalog* catalog) {
    catalog->job.state = JobState::kFailed;
    catalog->job.error = Error(StatusCode::kUnavailable, "no route");
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, Quick());
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_GE(stats->elapsed, Quick().pool_patience);
  EXPECT_LT(stats->elapsed, 10 * Quick().pool_patience);
  EXPECT_THAT(ToString(stats->detour), HasSubstr("no route"));
}

TEST(LoadDetourTest, ReadsOfASourceThatIsAwayGoOnOnceItIsThereAgain) {
  FakeModel model(SmallModel());
  model.catalog.silent = [] { return Error(StatusCode::kNotFound, "it has been removed"); };
  const TimePoint back = Clock::System().Now() + milliseconds(500);
  model.source_gate = [&](const std::string&, uint64_t) {
    return Clock::System().Now() < back ? Error(StatusCode::kUnavailable, "HTTP 503") : OkStatus();
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);

  model.source_gate = [](const std::string&, uint64_t) {
    return Error(StatusCode::kUnavailable, "HTTP 503");
  };
  HostTarget other;
  const Status status = model.Load(&other, {}, milliseconds(700)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(ToString(status), HasSubstr("HTTP 503"));
}

TEST(LoadDetourTest, WhatOthersBringInWhileTheSourceIsReadComesFromThePool) {
  FakeModel model(SmallModel());
  model.catalog.on_start = [](FakeCatalog* catalog) {
    catalog->job.state = JobState::kFailed;
    catalog->job.error = Error(StatusCode::kResourceExhausted, "no room");
  };
  std::atomic<bool> reads{false};
  std::atomic<int> looks{0};  // after that
  model.catalog.on_digests = [&](FakeCatalog*) {
    if (reads && ++looks == 1) model.BringAll();
  };
  model.source_gate = [&](const std::string&, uint64_t) {
    reads = true;
    EXPECT_TRUE(ems::testing::Eventually([&] { return looks >= 2; }));
    return OkStatus();
  };
  LoadOptions options;
  options.threads = 1;
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target, options);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(stats->source_bytes, model.manifest.blocks[0].bytes);
}

TEST(LoadDetourTest, AJobThatFailsForThePoolsSakeIsGoneAround) {
  FakeModel model(SmallModel());
  model.catalog.on_start = [](FakeCatalog* catalog) {
    catalog->job.state = JobState::kFailed;
    catalog->job.error = Error(StatusCode::kResourceExhausted, "no room");
  };
  HostTarget target;
  const Result<LoadStats> stats = model.Load(&target);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ExpectWhole(model, target);
  EXPECT_EQ(model.catalog.jobs_started, 1) << "nor is it begun again";
  EXPECT_THAT(ToString(stats->detour), HasSubstr("no room"));

  LoadOptions pool_only;
  pool_only.fallback_to_source = false;
  HostTarget other;
  const Status refused = model.Load(&other, pool_only).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  EXPECT_FALSE(other.file("config.json").ok());
}

TEST(LoadDetourTest, AControllerIsNotBlamedForTheLoadsLastMoments) {
  FakeModel model(SmallModel());
  model.catalog.waits = true;
  LoadOptions options;
  options.pool_patience = milliseconds(100);  // six times as long while servers answer
  HostTarget target;
  const Status status = model.Load(&target, options, milliseconds(450)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(ToString(status), Not(HasSubstr("no answer in time")));
  EXPECT_THAT(ToString(status), HasSubstr("job 1 is running"));
  EXPECT_EQ(model.opened, 0) << "too late to read the source";
}

}  // namespace
}  // namespace ems::model
