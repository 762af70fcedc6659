// What must hold: each metric has one entry, with the labels that its rows have.
#include "common/metrics_table.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

TEST(MetricsTableTest, EachMetricHasOneEntryInTheOrderOfNames) {
  EXPECT_EQ(MetricsTable("# HELP ems_b_total What b is\n"
                         "# TYPE ems_b_total counter\n"
                         "ems_b_total{op=\"get\",path=\"a,b=c\"} 3\n"
                         "ems_b_total{op=\"put\",path=\"\"} 4\n"
                         "# HELP ems_a What a is\n"
                         "# TYPE ems_a gauge\n"
                         "ems_a 1\n"
                         "# HELP ems_seconds What it took\n"
                         "# TYPE ems_seconds histogram\n"
                         "ems_seconds_bucket{op=\"get\",le=\"1\"} 1\n"
                         "ems_seconds_count{op=\"get\"} 1\n"),
            "ems_a gauge\n  What a is\n"
            "ems_b_total{op,path} counter\n  What b is\n"
            "ems_seconds{op} histogram\n  What it took\n");
}

}  // namespace
}  // namespace ems
