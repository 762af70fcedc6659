// What must hold: every series has its rounds, eviction happens where it is meant to, nothing stays
// behind, and a run without fio measures the tier all the same.
#include "bench/ssd/ssd_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::bench {
namespace {

using ::ems::testing::TempFolder;

SsdSettings Tiny(const TempFolder& folder) {
  SsdSettings settings;
  settings.folder = folder.path();
  settings.bytes = 48 * kMiB;
  settings.write_sizes = {256 * kKiB};
  settings.depths = {2};
  settings.rounds = 2;
  settings.restart_objects = 2000;
  return settings;
}

TEST(SsdBenchTest, WritesIntoAFreshTierAndIntoAFullOne) {
  const TempFolder folder;
  std::string said;
  SsdBench bench(Tiny(folder), [&](const std::string& line) { said += line + "\n"; });
  const Status ran = bench.RunWrites();
  ASSERT_TRUE(ran.ok()) << ToString(ran);
  const SsdResults& results = bench.results();
  ASSERT_EQ(results.series.size(), 2u);
  EXPECT_EQ(results.series[0].name, "write_256KiB");
  EXPECT_EQ(results.series[1].name, "write_256KiB_full");
  for (const SsdSeries& series : results.series) {
    EXPECT_EQ(series.ems.size(), 2u);
    EXPECT_GT(SsdSeries::MedianOf(series.ems, &SsdFigures::gb_per_second), 0);
    EXPECT_EQ(std::isnan(series.vs_fio()), !results.fio_missing.empty());
    EXPECT_GE(series.write_amplification, 1);
    EXPECT_LE(series.disk_bytes_max, series.capacity_bytes);
    EXPECT_GT(series.disk_bytes_max, 0u);
    EXPECT_NE(said.find(series.name), std::string::npos);
  }
  EXPECT_EQ(results.series[0].evicted_objects, 0u);
  EXPECT_GT(results.series[1].evicted_objects, 0u);
  EXPECT_FALSE(std::filesystem::exists(folder / "tier"));
  EXPECT_FALSE(std::filesystem::exists(folder / "fio.data"));
}

TEST(SsdBenchTest, ReadsAndComesBack) {
  const TempFolder folder;
  SsdBench bench(Tiny(folder), [](const std::string&) {});
  ASSERT_TRUE(bench.RunReads(true, true).ok());
  ASSERT_TRUE(bench.RunSmallRestart().ok());
  const SsdResults& results = bench.results();
  ASSERT_EQ(results.series.size(), 1u);
  EXPECT_EQ(results.series[0].name, "read_1MiB_depth2");
  EXPECT_EQ(results.series[0].ems.size(), 2u);
  EXPECT_GT(results.series[0].ems[0].p50_us, 0);
  ASSERT_EQ(results.restarts.size(), 2u);
  EXPECT_EQ(results.restarts[0].name, "restart_48MiB_1MiB");
  EXPECT_EQ(results.restarts[1].name, "restart_2000_4KiB");
  for (const SsdRestart& restart : results.restarts) {
    EXPECT_EQ(restart.seconds.size(), 2u);
    EXPECT_GT(restart.median_seconds(), 0);
  }
}

TEST(SsdBenchTest, AFolderThatIsNotThereIsAnError) {
  const TempFolder folder;
  std::filesystem::remove(folder.path());
  SsdSettings settings = Tiny(folder);
  settings.folder += "/none/below";
  SsdBench bench(settings, [](const std::string&) {});
  EXPECT_FALSE(bench.RunWrites().ok());
}

TEST(SsdSeriesTest, RatiosAreOfRoundsBesideEachOther) {
  SsdSeries series;
  EXPECT_TRUE(std::isnan(series.vs_fio()));
  for (const double gbps : {1.0, 4.0, 9.0}) {
    SsdFigures figures;
    figures.gb_per_second = gbps;
    series.ems.push_back(figures);
    figures.gb_per_second = 2;
    series.fio.push_back(figures);
  }
  EXPECT_DOUBLE_EQ(series.vs_fio(), 2);
  series.fio.pop_back();  // fio failed in a round
  EXPECT_TRUE(std::isnan(series.vs_fio()));
  EXPECT_EQ(CountName(1'000'000), "1M");
  EXPECT_EQ(CountName(20'000), "20000");
}

}  // namespace
}  // namespace ems::bench
