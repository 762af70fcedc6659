// What must hold: a database given this log writes no log file, and says its errors in ours.
#include "common/rocksdb_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/logging.h"

namespace ems {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RocksDbOptionsTest, ErrorsAreSaidAndTheRestIsNot) {
  ASSERT_TRUE(log::Init("info").ok());
  rocksdb::Options options;
  SetCommonRocksDbOptions("mp_server", "SSD tier", &options);
  const auto log = options.info_log;
  ::testing::internal::CaptureStderr();
  ROCKSDB_NAMESPACE::Header(log, "options %d", 1);
  ROCKSDB_NAMESPACE::Info(log, "flushed %d", 2);
  ROCKSDB_NAMESPACE::Warn(log, "slow %d", 3);
  ROCKSDB_NAMESPACE::Error(log, "no space %d \n", 4);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("warning mp_server: SSD tier, RocksDB: no space 4\n"));
  EXPECT_THAT(text, Not(HasSubstr("options")));
  EXPECT_THAT(text, Not(HasSubstr("flushed")));
  EXPECT_THAT(text, Not(HasSubstr("slow")));
}

TEST(RocksDbOptionsTest, ALongLineIsCut) {
  rocksdb::Options options;
  SetCommonRocksDbOptions("mp_server", "SSD tier", &options);
  const auto log = options.info_log;
  ::testing::internal::CaptureStderr();
  ROCKSDB_NAMESPACE::Error(log, "%s", std::string(10000, 'x').c_str());
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("xxxx"));
  EXPECT_LT(text.size(), 1000U);
}

TEST(RocksDbOptionsTest, DraftsAreRemovedAndNothingElse) {
  std::string folder = ::testing::TempDir() + "ems-rocks-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const char* name : {"OPTIONS-000007.dbtmp", "OPTIONS-000005", "000009.log", "CURRENT"})
    std::ofstream(folder + "/" + name) << "x";
  RemoveRocksDbDrafts(folder);
  RemoveRocksDbDrafts(folder + "/none");
  std::vector<std::string> left;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    left.push_back(file.path().filename());
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("OPTIONS-000005", "000009.log", "CURRENT"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ems
