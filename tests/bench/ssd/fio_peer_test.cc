// What must hold: fio's figures are read as what they mean, and what it cannot do is an error that
// says why.
#include "bench/ssd/fio_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/bytes.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

TEST(FioPeerTest, ReadsTheFiguresOfOneJob) {
  const std::string json = R"(fio: a warning
{"jobs": [{"error": 0, "usr_cpu": 10.0, "sys_cpu": 15.0,
  "read": {"io_bytes": 0, "bw_bytes": 0, "runtime": 0},
  "write": {"io_bytes": 2000000000, "bw_bytes": 1000000000, "runtime": 2000,
    "clat_ns": {"percentile": {"50.000000": 4000, "99.000000": 9000}}}}]})";
  const auto written = ParseFio(json, true);
  ASSERT_TRUE(written.ok()) << ToString(written.status());
  EXPECT_EQ(written->bytes, 2'000'000'000u);
  EXPECT_DOUBLE_EQ(written->gb_per_second, 1);
  EXPECT_DOUBLE_EQ(written->p50_us, 4);
  EXPECT_DOUBLE_EQ(written->p99_us, 9);
  EXPECT_DOUBLE_EQ(written->cpu_per_gb, 0.25);
  EXPECT_FALSE(ParseFio(json, false).ok());  // nothing was read
}

TEST(FioPeerTest, RefusesWhatIsNoResult) {
  for (const char* json : {"", "fio: no", "{", "{}", R"({"jobs": []})", R"({"jobs": [{}]})",
                           R"({"jobs": [{"write": 7}]})"}) {
    EXPECT_EQ(ParseFio(json, true).status().code(), StatusCode::kDataLoss) << json;
  }
}

class FioPeerRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!peer_.missing().empty()) GTEST_SKIP() << peer_.missing();
  }
  FioJob Job(bool write) const {
    return {.write = write,
            .path = folder_ / "data",
            .part_bytes = 4 * kMiB,
            .total_bytes = 4 * kMiB,
            .block_bytes = 64 * kKiB,
            .depth = 4};
  }
  const ::ems::testing::TempFolder folder_;
  FioPeer peer_{folder_.path()};
};

TEST_F(FioPeerRunTest, WritesAndReadsWhatItIsTold) {
  ASSERT_TRUE(PreallocateFile(folder_ / "data", 4 * kMiB).ok());
  const auto written = peer_.Run(Job(true));
  if (!written.ok() && ToString(written.status()).find("direct") != std::string::npos)
    GTEST_SKIP() << "no direct I/O in the temporary folder";
  ASSERT_TRUE(written.ok()) << ToString(written.status());
  EXPECT_EQ(written->bytes, 4 * kMiB);
  EXPECT_TRUE(written->counted_bytes == 0 || written->counted_bytes >= 4 * kMiB);
  EXPECT_GT(written->gb_per_second, 0);
  EXPECT_FALSE(peer_.engine().empty());
  const auto read = peer_.Run(Job(false));
  ASSERT_TRUE(read.ok()) << ToString(read.status());
  EXPECT_EQ(read->bytes, 4 * kMiB);
  EXPECT_GT(read->p99_us, 0);
  EXPECT_EQ(std::filesystem::file_size(folder_ / "data"), 4 * kMiB);
}

TEST_F(FioPeerRunTest, SaysWhatItSaidWhenItFails) {
  FioJob job = Job(true);
  std::ofstream(folder_ / "file") << "x";
  job.path = folder_ / "file/data";
  const auto written = peer_.Run(job);
  EXPECT_EQ(written.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(ToString(written.status()), HasSubstr("fio --ioengine="));
  EXPECT_EQ(peer_.engine(), "");
}

TEST(FioPeerTest, PreallocationThatCannotBeIsAnError) {
  const ::ems::testing::TempFolder folder;
  EXPECT_EQ(PreallocateFile(folder / "none/data", kMiB).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::bench
