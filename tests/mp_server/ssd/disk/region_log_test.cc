// What must hold: regions take what they are said to take of the disk, a use of one is known again
// after a restart, its sequence is never another one's, and a disk that refuses leaves nothing
// half-made behind.
#include "mp_server/ssd/disk/region_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using testing::FaultyFiles;
using testing::kNs;
using testing::kOtherNs;

constexpr uint64_t kRegionBytes = 64 * kKiB;

class RegionLogTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Open(4).ok()); }

  RegionLog::Options OptionsFor(uint32_t regions_max) {
    return testing::LogOptions(folder_ / "regions", &files_, regions_max, kRegionBytes);
  }
  Status Open(const RegionLog::Options& options) {
    log_.reset();
    Result<std::unique_ptr<RegionLog>> opened = RegionLog::Open(options);
    if (opened.ok()) log_ = *std::move(opened);
    return opened.status();
  }
  Status Open(uint32_t regions_max) { return Open(OptionsFor(regions_max)); }
  // Begins `count` regions for kNs; returns their sequences.
  std::vector<uint64_t> Begin(size_t count) {
    std::vector<uint64_t> sequences;
    for (size_t i = 0; i < count; ++i) {
      const Region* region = testing::BeginRegion(log_.get());
      EXPECT_NE(region, nullptr);
      sequences.push_back(region == nullptr ? 0 : region->sequence);
    }
    return sequences;
  }
  // Names of the files in the log's folder, sorted.
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(folder_ / "regions"))
      names.push_back(file.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string PathOf(const std::string& name) const { return folder_ / "regions/" + name; }
  void Overwrite(const std::string& name, uint64_t offset, const std::string& bytes) const {
    std::fstream file(PathOf(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
    ASSERT_TRUE(file.good());
  }

  testing::TempFolder folder_;
  FaultyFiles files_;
  std::unique_ptr<RegionLog> log_;
};

TEST_F(RegionLogTest, ANewFolderHasNoRegions) {
  EXPECT_TRUE(log_->regions().empty());
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 0U);
  EXPECT_EQ(log_->regions().size() * kRegionBytes, 0U);
  EXPECT_EQ(log_->Find(0), nullptr);
  EXPECT_GE(log_->next_sequence(), 1U) << "0 says that there is none";
}

TEST_F(RegionLogTest, ARegionTakesExactlyItsBytesBeforeAnythingIsWritten) {
  const Result<Region*> region = log_->TakeFree();
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->state, RegionState::kFree);
  struct stat info {};
  ASSERT_EQ(::fstat((*region)->fd.get(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), kRegionBytes);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, kRegionBytes) << "not a sparse file";
  EXPECT_EQ(log_->regions().size() * kRegionBytes, kRegionBytes);
  EXPECT_EQ(Files().size(), 1U);
}

TEST_F(RegionLogTest, AFreeRegionIsTakenBeforeOneIsMade) {
  const Result<Region*> first = log_->TakeFree();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*log_->TakeFree(), *first);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 1U);
  ASSERT_TRUE(log_->Begin(*first, kNs).ok());
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 0U);
  EXPECT_NE(*log_->TakeFree(), *first);
  EXPECT_EQ(log_->regions().size(), 2U);
}

TEST_F(RegionLogTest, ARegionThatIsStillWrittenToIsNotTaken) {
  Region* region = testing::BeginRegion(log_.get());
  ASSERT_NE(region, nullptr);
  region->writes_under_way = 1;
  log_->Release(region);
  EXPECT_NE(*log_->TakeFree(), region);
  region->writes_under_way = 0;
  EXPECT_EQ(*log_->TakeFree(), region);
}

TEST_F(RegionLogTest, NoMoreRegionsThanItsMost) {
  Begin(4);
  EXPECT_EQ(log_->TakeFree().status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(log_->regions().size() * kRegionBytes, 4 * kRegionBytes);
  EXPECT_EQ(Files().size(), 4U);
  log_->Release(log_->regions()[2].get());
  EXPECT_EQ(*log_->TakeFree(), log_->regions()[2].get());
}

TEST_F(RegionLogTest, ANewUseStandsOnTheDiskBeforeARecordDoes) {
  const Result<Region*> taken = log_->TakeFree();
  ASSERT_TRUE(taken.ok());
  Region* region = *taken;
  const uint64_t next = log_->next_sequence();
  ASSERT_TRUE(log_->Begin(region, kNs).ok());
  EXPECT_EQ(region->state, RegionState::kOpen);
  EXPECT_EQ(region->sequence, next);
  EXPECT_EQ(region->ns, kNs);
  EXPECT_EQ(region->fill_bytes, kBlockBytes);
  EXPECT_GT(log_->next_sequence(), region->sequence);
  AlignedBuffer buffer;
  const MutableBytes block = buffer.Take(kBlockBytes);
  ASSERT_TRUE(files_.Read(region->fd.get(), block, 0).ok());
  RegionHeader header;
  ASSERT_TRUE(ReadRegionHeader(block, &header));
  EXPECT_EQ(header.store_id, testing::kStoreId);
  EXPECT_EQ(header.sequence, region->sequence);
  EXPECT_EQ(header.region, region->id);
  EXPECT_EQ(header.namespace_id, kNs.id.value());
  EXPECT_EQ(header.namespace_generation, kNs.generation);
}

TEST_F(RegionLogTest, ARestartKnowsEachUseAgain) {
  Region* first = testing::BeginRegion(log_.get(), kNs);
  Region* second = testing::BeginRegion(log_.get(), kOtherNs);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const uint32_t ids[] = {first->id, second->id};
  const uint64_t sequences[] = {first->sequence, second->sequence};
  ASSERT_TRUE(log_->TakeFree().ok());  // a third one that is not begun

  ASSERT_TRUE(Open(4).ok());
  EXPECT_EQ(log_->regions().size(), 3U);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 1U);
  EXPECT_EQ(log_->regions().size() * kRegionBytes, 3 * kRegionBytes);
  const NamespaceRef namespaces[] = {kNs, kOtherNs};
  for (int i = 0; i < 2; ++i) {
    const Region* region = log_->Find(ids[i]);
    ASSERT_NE(region, nullptr);
    EXPECT_EQ(region->state, RegionState::kSealed);
    EXPECT_EQ(region->sequence, sequences[i]);
    EXPECT_EQ(region->ns, namespaces[i]);
    EXPECT_TRUE(region->members.empty());
    EXPECT_TRUE(region->fd.valid());
  }
  EXPECT_GT(log_->next_sequence(), sequences[1]);
}

TEST_F(RegionLogTest, SequencesNeverRepeatOverRestarts) {
  std::set<uint64_t> seen;
  for (int restart = 0; restart < 5; ++restart) {
    for (int use = 0; use < 4; ++use) {
      Region* region = testing::BeginRegion(log_.get());
      ASSERT_NE(region, nullptr);
      EXPECT_TRUE(seen.insert(region->sequence).second) << region->sequence;
      if (use < 3) log_->Release(region);
    }
    ASSERT_TRUE(Open(6).ok());
    EXPECT_GT(log_->next_sequence(), *seen.rbegin());
  }
}

TEST_F(RegionLogTest, ASequenceIsNeverBelowWhatItWasRaisedTo) {
  log_->RaiseSequence(1000);
  EXPECT_EQ(log_->next_sequence(), 1001U);
  log_->RaiseSequence(10);
  EXPECT_EQ(log_->next_sequence(), 1001U);
  EXPECT_EQ(testing::BeginRegion(log_.get())->sequence, 1001U);
}

TEST_F(RegionLogTest, ASmallerTierDropsFreeRegionsThenTheOldest) {
  ASSERT_TRUE(Open(6).ok());
  const std::vector<uint64_t> sequences = Begin(5);
  ASSERT_TRUE(log_->TakeFree().ok());
  log_->Release(log_->Find(0));
  ASSERT_TRUE(log_->Begin(log_->Find(0), kNs).ok());  // the newest now
  const uint64_t newest = log_->Find(0)->sequence;
  ASSERT_EQ(Files().size(), 6U);

  ASSERT_TRUE(Open(5).ok());
  EXPECT_EQ(log_->regions().size(), 5U);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 0U);
  ASSERT_TRUE(Open(2).ok());
  EXPECT_EQ(log_->regions().size() * kRegionBytes, 2 * kRegionBytes);
  EXPECT_EQ(Files().size(), 2U) << "the others are off the disk, too";
  std::set<uint64_t> kept;
  for (const auto& region : log_->regions()) kept.insert(region->sequence);
  EXPECT_EQ(kept, (std::set<uint64_t>{sequences[4], newest}));
  EXPECT_EQ(log_->TakeFree().status().code(), StatusCode::kOutOfRange);
  EXPECT_GT(log_->next_sequence(), newest);

  ASSERT_TRUE(Open(3).ok()) << "and grows again";
  EXPECT_NE(testing::BeginRegion(log_.get()), nullptr);
  EXPECT_EQ(Files().size(), 3U);
}

TEST_F(RegionLogTest, AFileOfTheWrongSizeIsGivenUp) {
  Begin(3);
  fs::resize_file(PathOf("00000000.region"), kRegionBytes - 1);
  fs::resize_file(PathOf("00000001.region"), 2 * kRegionBytes);
  std::ofstream(PathOf("00000003.region")).flush();  // made, and not preallocated any more
  ASSERT_TRUE(Open(4).ok());
  ASSERT_EQ(log_->regions().size(), 1U);
  EXPECT_EQ(log_->regions().front()->id, 2U);
  EXPECT_EQ(Files(), (std::vector<std::string>{"00000002.region"}));
  Begin(3);
  EXPECT_EQ(Files().size(), 4U) << "their names are used again";
  for (const std::string& name : Files()) EXPECT_EQ(fs::file_size(PathOf(name)), kRegionBytes);
}

TEST_F(RegionLogTest, RegionsOfAnotherSizeAreGivenUp) {
  Begin(4);
  RegionLog::Options larger = OptionsFor(4);
  larger.region_bytes = 2 * kRegionBytes;
  ASSERT_TRUE(Open(larger).ok());
  EXPECT_TRUE(log_->regions().empty());
  EXPECT_TRUE(Files().empty());
  EXPECT_NE(testing::BeginRegion(log_.get()), nullptr);
}

TEST_F(RegionLogTest, RegionsOfAnotherStoreAreFree) {
  Begin(3);
  RegionLog::Options other = OptionsFor(4);
  ++other.store_id;
  ASSERT_TRUE(Open(other).ok());
  EXPECT_EQ(log_->regions().size(), 3U);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 3U);
  Begin(4);
  ASSERT_TRUE(Open(other).ok());
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 0U)
      << "they are this store's from their next use on";
}

TEST_F(RegionLogTest, ARegionWithADamagedHeaderIsFree) {
  Begin(2);
  Overwrite("00000001.region", 16, "x");
  ASSERT_TRUE(Open(4).ok());
  EXPECT_EQ(log_->regions().size(), 2U);
  EXPECT_EQ(log_->Find(0)->state, RegionState::kSealed);
  EXPECT_EQ(log_->Find(1)->state, RegionState::kFree);
}

TEST_F(RegionLogTest, ACopyUnderAnotherNameIsFree) {
  Begin(1);
  fs::copy_file(PathOf("00000000.region"), PathOf("00000003.region"));
  ASSERT_TRUE(Open(4).ok());
  EXPECT_EQ(log_->Find(0)->state, RegionState::kSealed);
  EXPECT_EQ(log_->Find(3)->state, RegionState::kFree);
}

TEST_F(RegionLogTest, ARegionWhoseHeaderCannotBeReadIsFree) {
  Begin(2);
  files_.Fail(FaultyFiles::kRead, StatusCode::kUnavailable, 1);
  ASSERT_TRUE(Open(4).ok());
  EXPECT_EQ(log_->regions().size(), 2U);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 1U);
}

TEST_F(RegionLogTest, FilesOfOthersAreLeftAlone) {
  const std::vector<std::string> names = {"-1.region", "1.regions", "1x.region",
                                          "notes.txt", "region",    "x.region"};
  for (const std::string& name : names) std::ofstream(PathOf(name)) << "not ours";
  ASSERT_TRUE(Open(4).ok());
  EXPECT_TRUE(log_->regions().empty());
  EXPECT_EQ(Files(), names);
}

// Two regions of one id: the records of one would be looked for in the other.
TEST_F(RegionLogTest, AFileWhoseNameTheLogWouldNotGiveIsNoRegion) {
  Begin(1);
  fs::copy_file(PathOf("00000000.region"), PathOf("0.region"));
  ASSERT_TRUE(Open(4).ok());
  EXPECT_EQ(log_->regions().size(), 1U);
  EXPECT_TRUE(fs::exists(PathOf("00000000.region")));
}

TEST_F(RegionLogTest, AFolderThatCannotBeIsUnavailable) {
  std::ofstream(folder_ / "file") << "x";
  RegionLog::Options options = OptionsFor(4);
  options.folder = folder_ / "file/regions";
  EXPECT_EQ(Open(options).code(), StatusCode::kUnavailable);
}

TEST_F(RegionLogTest, AFullDiskLeavesNoFileBehind) {
  Begin(1);
  files_.Fail(FaultyFiles::kPreallocate, StatusCode::kResourceExhausted);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(log_->TakeFree().status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Files().size(), 1U);
  EXPECT_EQ(log_->regions().size() * kRegionBytes, kRegionBytes);
  files_.Mend();
  EXPECT_EQ(Begin(3).size(), 3U) << "there is room again";
}

TEST_F(RegionLogTest, AFileThatCannotBeMadeIsNoRegion) {
  files_.Fail(FaultyFiles::kOpen, StatusCode::kUnavailable, 1);
  EXPECT_EQ(log_->TakeFree().status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Files().empty());
  EXPECT_TRUE(log_->TakeFree().ok());
}

TEST_F(RegionLogTest, ARegionWhoseNameMayNotOutlivePowerIsTakenUpLater) {
  files_.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
  EXPECT_EQ(log_->TakeFree().status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(log_->regions().empty());
  EXPECT_EQ(Begin(4).size(), 4U);
  EXPECT_EQ(Files().size(), 4U) << "no file beyond the most";
}

TEST_F(RegionLogTest, ARegionThatCannotBeBegunIsBadUntilItIsReleased) {
  Region* region = testing::BeginRegion(log_.get(), kNs);
  ASSERT_NE(region, nullptr);
  const uint64_t before = region->sequence;
  log_->Release(region);
  files_.Fail(FaultyFiles::kWrite, StatusCode::kUnavailable, 1);
  EXPECT_EQ(log_->Begin(region, kOtherNs).code(), StatusCode::kUnavailable);
  EXPECT_EQ(region->state, RegionState::kBad);
  EXPECT_EQ(::ems::testing::FreeRegions(*log_), 0U);
  EXPECT_NE(*log_->TakeFree(), region);
  const uint64_t failed = region->sequence;
  EXPECT_GT(failed, before);
  log_->Release(region);
  ASSERT_TRUE(log_->Begin(region, kNs).ok());
  EXPECT_GT(region->sequence, failed) << "what was written with it may be there";
}

TEST_F(RegionLogTest, AReleasedRegionHasNothingInIt) {
  Region* region = testing::BeginRegion(log_.get());
  ASSERT_NE(region, nullptr);
  region->members.push_back(KeyHash("a"));
  log_->Release(region);
  EXPECT_EQ(region->state, RegionState::kFree);
  EXPECT_TRUE(region->members.empty());
  EXPECT_EQ(region->ns, NamespaceRef());
}

// The machine's own files.
TEST(RegionFilesTest, WhatIsNotThereIsMadeOnRequestAlone) {
  const testing::TempFolder folder;
  RegionFiles files;
  bool direct = false;
  EXPECT_EQ(files.Open(folder / "a", false, &direct).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(fs::exists(folder / "a"));
  EXPECT_TRUE(files.Open(folder / "a", true, &direct).ok());
  EXPECT_TRUE(files.Open(folder / "a", false, &direct).ok());
}

TEST(RegionFilesTest, ATransferIsWholeOrUnavailable) {
  const testing::TempFolder folder;
  RegionFiles files;
  bool direct = false;
  const auto file = files.Open(folder / "a", true, &direct);
  ASSERT_TRUE(file.ok() && files.Preallocate(file->get(), 2 * kBlockBytes).ok());
  AlignedBuffer buffer;
  const MutableBytes blocks = buffer.Take(2 * kBlockBytes);
  testing::FillValue("files", "a", 1, blocks);
  ASSERT_TRUE(files.Write(file->get(), blocks, 0).ok());
  ASSERT_TRUE(files.Sync(file->get()).ok());
  std::fill(blocks.begin(), blocks.end(), std::byte{0});
  ASSERT_TRUE(files.Read(file->get(), blocks, 0).ok());
  EXPECT_EQ(testing::VerifyValue("files", "a", AsText(blocks)), 1U);
  EXPECT_EQ(files.Read(file->get(), blocks, kBlockBytes).code(), StatusCode::kUnavailable)
      << "the file ends inside";
  EXPECT_EQ(files.Read(-1, blocks, 0).code(), StatusCode::kUnavailable);
  EXPECT_EQ(files.Write(-1, blocks, 0).code(), StatusCode::kUnavailable);
  EXPECT_EQ(files.Sync(-1).code(), StatusCode::kUnavailable);
  EXPECT_EQ(files.Preallocate(-1, kBlockBytes).code(), StatusCode::kUnavailable);
}

TEST(RegionFilesTest, MoreThanTheDiskHasIsResourceExhausted) {
  // A file system in memory says so before it takes anything.
  struct statfs info {};
  if (::statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS_MAGIC || info.f_blocks == 0)
    GTEST_SKIP() << "no small file system here";
  std::string path = "/dev/shm/ems-ssd-XXXXXX";
  const fabric::Fd file(::mkstemp(path.data()));
  ASSERT_TRUE(file.valid());
  ::unlink(path.c_str());
  RegionFiles files;
  const uint64_t all = static_cast<uint64_t>(info.f_blocks) * static_cast<uint64_t>(info.f_bsize);
  EXPECT_EQ(files.Preallocate(file.get(), RoundUp(2 * all, kBlockBytes)).code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ems::ssd
