// What must hold: what is counted is rendered, labels keep series apart, the same name and labels
// are the same metric.
#include "common/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ems {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, RendersNameHelpLabelsAndValue) {
  MetricsRegistry registry;
  registry.AddCounter("ems_test_hits_total", "Hits.", {{"namespace", "a"}}).Add(3);
  registry.AddGauge("ems_test_used_bytes", "Bytes in use.").Set(42);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("# HELP ems_test_hits_total Hits."));
  EXPECT_THAT(text, HasSubstr("# TYPE ems_test_hits_total counter"));
  EXPECT_THAT(text, HasSubstr("ems_test_hits_total{namespace=\"a\"} 3"));
  EXPECT_THAT(text, HasSubstr("ems_test_used_bytes 42"));
}

TEST(MetricsTest, SameNameAndLabelsAreOneMetricOthersAreApart) {
  MetricsRegistry registry;
  const Counter first = registry.AddCounter("ems_test_ops_total", "Ops.", {{"op", "get"}});
  const Counter again = registry.AddCounter("ems_test_ops_total", "Ops.", {{"op", "get"}});
  const Counter other = registry.AddCounter("ems_test_ops_total", "Ops.", {{"op", "put"}});
  first.Add();
  again.Add();
  EXPECT_EQ(first.value(), 2);
  EXPECT_EQ(other.value(), 0);
}

TEST(MetricsTest, HistogramCountsIntoItsBuckets) {
  MetricsRegistry registry;
  const Histogram histogram = registry.AddHistogram("ems_test_seconds", "Time.", {0.1, 1});
  histogram.Observe(0.05);
  histogram.Observe(0.5);
  histogram.Observe(5);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_test_seconds_bucket{le=\"0.1\"} 1"));
  EXPECT_THAT(text, HasSubstr("ems_test_seconds_bucket{le=\"1\"} 2"));
  EXPECT_THAT(text, HasSubstr("ems_test_seconds_bucket{le=\"+Inf\"} 3"));
}

TEST(MetricsTest, SparseCountersAppearOnFirstUse) {
  MetricsRegistry registry;
  registry.AddCounter("ems_test_plain_total", "Plain.", {{"worker", "a"}});
  const Counter get = registry.AddSparseCounter("ems_test_ops_total", "Ops.", {{"op", "get"}});
  registry.AddSparseCounter("ems_test_ops_total", "Ops.", {{"op", "put"}});
  std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_test_plain_total{worker=\"a\"} 0\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("ems_test_ops_total")));
  get.Add();
  text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_test_ops_total{op=\"get\"} 1\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("put")));
}

TEST(MetricsTest, OneOfASparseFamilyMayShowItsZero) {
  MetricsRegistry registry;
  registry.AddSparseCounter("ems_test_ops_total", "Ops.", {{"op", "get"}, {"status", "ok"}});
  registry.AddCounter("ems_test_ops_total", "Ops.", {{"op", "get"}, {"status", "damaged"}});
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_test_ops_total{op=\"get\",status=\"damaged\"} 0\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("status=\"ok\"")));
}

TEST(MetricsTest, ACounterMayShowACountThatIsKeptElsewhere) {
  MetricsRegistry registry;
  registry.AddShownCounter("ems_test_shown_total", "Shown.").Set(7);
  EXPECT_THAT(registry.Render(), HasSubstr("# TYPE ems_test_shown_total counter\n"
                                           "ems_test_shown_total 7\n"));
}

TEST(MetricsTest, TextsOfOthersFollow) {
  MetricsRegistry registry;
  registry.AddGauge("ems_test_used_bytes", "Bytes.");
  registry.AddText([](std::string* text) { text->append("ems_test_more 1\n"); });
  EXPECT_THAT(registry.Render(), ::testing::EndsWith("ems_test_used_bytes 0\nems_test_more 1\n"));
}

TEST(MetricsTest, HandleWithoutARegistryIsHarmless) {
  const Counter counter;
  counter.Add(5);
  EXPECT_EQ(counter.value(), 0);
  const Gauge gauge;
  gauge.Set(5);
  EXPECT_EQ(gauge.value(), 0);
  Histogram().Observe(1);
}

}  // namespace
}  // namespace ems
