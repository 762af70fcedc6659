// What must hold: people and scripts read the numbers that the SDK gave.
#include "tools/emsctl/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

model::ModelInfo Info() {
  model::ModelInfo info;
  info.id = 3;
  info.name = {.model = "qwen/7b", .version = "v1"};
  info.name_space = "models";
  info.source.url = "s3://models/qwen";
  info.bytes = 4 * kGiB;
  info.files = 2;
  info.blocks = 256;
  info.blocks_known = 10;
  info.unused = std::chrono::minutes(5);
  info.job.number = 1;
  info.job.state = model::JobState::kRunning;
  info.job.bytes_done = kGiB;
  info.job.source_bytes = kGiB / 2;
  info.job.elapsed = std::chrono::seconds(2);
  return info;
}

TEST(ModelTextTest, TheListSaysHowFarJobsAre) {
  const std::string text = ModelsText({Info()});
  EXPECT_THAT(text, HasSubstr("qwen/7b  v1       4 GiB"));
  EXPECT_THAT(text, HasSubstr("running, 25.0 %"));
  EXPECT_THAT(text, HasSubstr("5 min"));
  EXPECT_THAT(ModelsText({}), HasSubstr("emsctl model add"));
}

TEST(ModelTextTest, FirstReadsAreShown) {
  model::ModelInfo info = Info();
  info.source.url = "http://h/m/";
  model::Manifest manifest;
  manifest.source = info.source;
  manifest.files.push_back({.path = "a.bin", .bytes = 5, .tag = "t"});
  EXPECT_THAT(ModelText(info, manifest), HasSubstr("first read  once, 1 of 2 files unprotected"));
  EXPECT_EQ(ModelJson(info)["verify"], false);
  info.source.first_read = model::FirstRead::kTwiceUnlessChecked;
  EXPECT_THAT(ModelText(info, manifest), HasSubstr("first read  twice unless checked\n"));
  EXPECT_THAT(ModelsText({info}), HasSubstr("twice unless checked"));
  EXPECT_EQ(ModelJson(info)["verify"], true);
  EXPECT_EQ(ModelJson(info)["first_read"], "twice unless checked");
  model::CheckResult check;
  check.info = info;
  EXPECT_THAT(CheckText(check), Not(HasSubstr("unprotected")));
  check.unprotected_files = 1;
  EXPECT_THAT(CheckText(check), HasSubstr("the first read of 1 of 2 files is unprotected"));
  EXPECT_EQ(CheckJson(check)["unprotected_files"], 1);
}

TEST(ModelTextTest, OneVersionWithItsFiles) {
  model::Manifest manifest;
  manifest.files.push_back({.path = "a.bin", .bytes = 5, .tag = "\"x\x01\""});
  const std::string text = ModelText(Info(), manifest);
  EXPECT_THAT(text, HasSubstr("qwen/7b@v1"));
  EXPECT_THAT(text, HasSubstr("a.bin"));
  EXPECT_THAT(text, HasSubstr("\\x01"));
  EXPECT_EQ(ManifestJson(manifest)["files"][0]["bytes"], 5);
  EXPECT_EQ(ModelJson(Info())["job"]["state"], "running");
  model::ModelInfo failed = Info();
  failed.job.state = model::JobState::kFailed;
  failed.job.error = Error(StatusCode::kNotFound, "no bucket");
  EXPECT_THAT(ModelText(failed, manifest), HasSubstr("NOT_FOUND: no bucket"));
  EXPECT_EQ(ModelJson(failed)["job"]["error"], "NOT_FOUND: no bucket");
  EXPECT_TRUE(ModelJson(failed)["job"]["failures"].empty());
}

TEST(ModelTextTest, ServersThatCouldNotDoTheirPartAreNamed) {
  model::ModelInfo info = Info();  // a job that is running
  info.job.time_left = std::chrono::seconds(90);
  info.job.failures = {{"b", Error(StatusCode::kPermissionDenied, "source answered 403")}};
  info.job.failures_left_out = 3;
  const std::string text = ModelText(info, {});
  EXPECT_THAT(text, HasSubstr("server \"b\": PERMISSION_DENIED: source answered 403"));
  EXPECT_THAT(text, HasSubstr("and 3 more servers"));
  const auto job = ModelJson(info)["job"];
  EXPECT_EQ(job["failures"][0]["server"], "b");
  EXPECT_EQ(job["failures"][0]["error"], "PERMISSION_DENIED: source answered 403");
  EXPECT_EQ(job["failures_left_out"], 3);
  EXPECT_EQ(job["seconds_left"], 90.0);
}

TEST(ModelTextTest, CheckShowsShares) {
  model::CheckResult check;
  check.info = Info();
  check.dram_bytes = kGiB;
  check.absent_bytes = 3 * kGiB;
  EXPECT_THAT(CheckText(check), HasSubstr("25.0 %"));
  EXPECT_THAT(CheckText(check), Not(HasSubstr("no answer")));
  EXPECT_THAT(CheckText(check), Not(HasSubstr("other versions")));
  check.shared_blocks = 1;
  EXPECT_THAT(CheckText(check), HasSubstr("other versions"));
  check.unreachable_blocks = 1;
  EXPECT_THAT(CheckText(check), HasSubstr("no answer"));
  EXPECT_EQ(CheckJson(check)["absent_bytes"], 3 * kGiB);
}

TEST(ModelTextTest, JobsAndLoadsSayWhereBytesCameFrom) {
  EXPECT_THAT(JobText(Info()), HasSubstr("1 GiB of 4 GiB in 2.0 s, 0.54 GB/s"));
  EXPECT_THAT(JobText(Info()), HasSubstr("512 MiB from the source"));
  model::LoadStats stats;
  stats.bytes = stats.dram_bytes = kGiB;
  stats.elapsed = std::chrono::seconds(1);
  EXPECT_THAT(LoadText(stats), HasSubstr("1 GiB in 1.0 s, 1.07 GB/s; 1 GiB from DRAM"));
  EXPECT_FALSE(LoadJson(stats).contains("why_source"));
  stats.detour = Error(StatusCode::kUnavailable, "no server");
  EXPECT_THAT(LoadText(stats), HasSubstr("no server"));
  EXPECT_EQ(LoadJson(stats)["why_source"], "UNAVAILABLE: no server");
}

TEST(ModelTextTest, TimesReadAsPeopleSayThem) {
  EXPECT_EQ(TimeText(std::chrono::milliseconds(1500)), "1.5 s");
  EXPECT_EQ(TimeText(std::chrono::minutes(3)), "3 min");
  EXPECT_EQ(TimeText(std::chrono::hours(5)), "5 h");
  EXPECT_EQ(TimeText(std::chrono::hours(24 * 7)), "7 d");
}

}  // namespace
}  // namespace ems::emsctl
