// What must hold: who waits is woken by what there is to do, and by the end.
#include "mp_server/models/pull_table.h"

#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "tests/mp_server/models/model_pull_samples.h"

namespace ems::server {
namespace {

PullTable::Options Options(MetricsRegistry* registry) {
  PullTable::Options options;
  options.controller = "127.0.0.1:1";
  options.metrics = registry;
  return options;
}

TEST(PullTableTest, AVersionIsFoundAsLongAsItIsWorkedAt) {
  MetricsRegistry registry;
  PullTable table(Options(&registry));
  EXPECT_FALSE(table.With(7, [](ModelPull&) {}));
  {
    auto locked = table.state.Lock();
    locked->pulls[7] = std::make_unique<ModelPull>(7, Sample());
  }
  EXPECT_TRUE(table.With(7, [](ModelPull& pull) { EXPECT_EQ(pull.id(), 7U); }));
}

TEST(PullTableTest, WhoWaitsIsWoken) {
  MetricsRegistry registry;
  PullTable table(Options(&registry));
  const auto wait = [&](std::condition_variable* what) {
    auto locked = table.state.Lock();
    return locked.WaitFor(*what, std::chrono::seconds(20),
                          [](const PullTable::State& s) { return s.report_due || s.stopping; });
  };
  Thread worker("worker", [&] { EXPECT_TRUE(wait(&table.work)); });
  Thread reporter("reporter", [&] { EXPECT_TRUE(wait(&table.reports)); });
  table.Wake();
  worker.Join();
  reporter.Join();
  {
    auto locked = table.state.Lock();
    locked->report_due = false;
  }
  Thread follower("follower", [&] { EXPECT_TRUE(wait(&table.unverified)); });
  table.Stop();
  follower.Join();
  EXPECT_TRUE(table.stop.IsSet());
}

}  // namespace
}  // namespace ems::server
