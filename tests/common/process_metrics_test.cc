// What must hold: the text names the build, and its numbers are those of this process.
#include "common/process_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

namespace ems {
namespace {

double ValueOf(const std::string& name) {
  std::string text;
  AppendProcessMetrics(&text);
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + name.size() + 2);
}

TEST(ProcessMetricsTest, TheBuildIsNamed) {
  std::string text;
  AppendProcessMetrics(&text);
  EXPECT_THAT(text, ::testing::ContainsRegex(
                        "\nems_build_info\\{version=\"[0-9.]+\",commit=\"[0-9a-z]+\"\\} 1\n"));
}

TEST(ProcessMetricsTest, NumbersAreThoseOfThisProcess) {
  EXPECT_GT(ValueOf("process_resident_memory_bytes"), 1e6);
  EXPECT_GE(ValueOf("process_cpu_seconds_total"), 0);
  EXPECT_NEAR(ValueOf("process_start_time_seconds"), static_cast<double>(::time(nullptr)), 60);
  const double before = ValueOf("process_open_fds");
  const int one_more = ::dup(0);
  EXPECT_EQ(ValueOf("process_open_fds"), before + 1);
  ::close(one_more);
  EXPECT_GT(ValueOf("process_max_fds"), before);
}

}  // namespace
}  // namespace ems
