// What must hold: a power cut takes what was not synced, may take any part of it, and takes nothing
// else.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "common/durable_folder.h"
#include "fabric/net/socket.h"
#include "tests/support/power_cut.h"
#include "tests/support/power_log.h"
#include "tests/support/temp_path.h"

namespace ems::testing {
namespace {

namespace fs = std::filesystem;
using Loss = PowerCutOptions::Loss;

constexpr uint64_t kSeeds = 64;
constexpr size_t kSector = 512;

// This program has power_loss.cc linked in, in front of the C library.
class PowerLossTest : public ::testing::Test {
 protected:
  PowerLossTest() {
    fs::create_directories(folder_.path());
    Watch();
  }
  ~PowerLossTest() override { ::unsetenv(kPowerLossVariable); }  // NOLINT(concurrency-mt-unsafe)

  void Watch() const {
    ::setenv(kPowerLossVariable, folder_.path().c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  fabric::Fd Open(const std::string& name, int flags = 0) const {
    return fabric::Fd(::open(Path(name).c_str(), O_RDWR | O_CREAT | flags, 0600));
  }
  static void Write(const fabric::Fd& file, const std::string& text, uint64_t at) {
    ASSERT_EQ(::pwrite(file.get(), text.data(), text.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(text.size()));
  }
  static void Sync(const fabric::Fd& file) { ASSERT_EQ(::fdatasync(file.get()), 0); }
  void SyncFolder(const std::string& name = ".") const {
    const fabric::Fd folder(::open(Path(name).c_str(), O_RDONLY | O_DIRECTORY));
    ASSERT_EQ(::fsync(folder.get()), 0);
  }
  // A file that no cut takes away.
  fabric::Fd Make(const std::string& name, const std::string& text) const {
    fabric::Fd file = Open(name);
    Write(file, text, 0);
    Sync(file);
    SyncFolder();
    return file;
  }
  PowerCutReport Cut(Loss loss, uint64_t seed = 1) const {
    ::unsetenv(kPowerLossVariable);  // NOLINT(concurrency-mt-unsafe)
    const Result<PowerCutReport> report = CutPower(folder_.path(), {.loss = loss, .seed = seed});
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_FALSE(fs::exists(folder_.path() + kUndoSuffix));
    Watch();
    return report.value_or(PowerCutReport());
  }
  // "none" when it is not there.
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    if (!file) return "none";
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  const TempPath folder_{"power-loss"};
  const TempPath undo_{std::string("power-loss") + kUndoSuffix};
};

TEST_F(PowerLossTest, WhatWasNotSyncedIsLostAndWhatWasIsNot) {
  const fabric::Fd file = Make("f", "synced");
  Write(file, "more", 6);
  Write(file, "SYN", 0);
  EXPECT_EQ(Read("f"), "SYNcedmore");
  const PowerCutReport report = Cut(Loss::kAll);
  EXPECT_EQ(Read("f"), "synced");
  EXPECT_EQ(report.unsynced, 2u);
  EXPECT_EQ(report.lost, 2u);
}

TEST_F(PowerLossTest, ASyncCoversItsOwnFileAlone) {
  const fabric::Fd one = Make("one", "1"), two = Make("two", "2");
  Write(one, "x", 0);
  Write(two, "y", 0);
  Sync(two);
  Cut(Loss::kAll);
  EXPECT_EQ(Read("one"), "1");
  EXPECT_EQ(Read("two"), "y");
}

TEST_F(PowerLossTest, WhatIsLeftCountsAsSynced) {
  const fabric::Fd file = Make("f", "a");
  Write(file, "b", 0);
  Cut(Loss::kNothing);
  Cut(Loss::kAll);
  EXPECT_EQ(Read("f"), "b");
}

TEST_F(PowerLossTest, EachWayToWriteIsSeen) {
  const fabric::Fd file = Make("f", "....");
  const iovec part{const_cast<char*>("ab"), 2};
  ASSERT_EQ(::write(file.get(), "12", 2), 2);
  ASSERT_EQ(::writev(file.get(), &part, 1), 2);
  ASSERT_EQ(::pwritev(file.get(), &part, 1, 6), 2);
  const fabric::Fd end(::open(Path("f").c_str(), O_WRONLY | O_APPEND));
  ASSERT_EQ(::write(end.get(), "end", 3), 3);
  EXPECT_EQ(Read("f"), std::string("12ab\0\0abend", 11));
  EXPECT_EQ(Cut(Loss::kAll).lost, 4u);
  EXPECT_EQ(Read("f"), "....");
}

TEST_F(PowerLossTest, AFileThatWasCutOffOrPreallocatedIsAsItWas) {
  const fabric::Fd file = Make("f", "0123456789"), room = Make("room", "");
  ASSERT_EQ(::ftruncate(file.get(), 4), 0);
  Write(file, "xx", 2);
  ASSERT_EQ(::fallocate(room.get(), 0, 0, 8192), 0);
  EXPECT_EQ(fs::file_size(Path("room")), 8192u);
  Cut(Loss::kAll);
  EXPECT_EQ(Read("f"), "0123456789");
  EXPECT_EQ(Read("room"), "");
  { const fabric::Fd emptied = Open("f", O_TRUNC); }
  EXPECT_EQ(Read("f"), "");
  Cut(Loss::kAll);
  EXPECT_EQ(Read("f"), "0123456789");
}

TEST_F(PowerLossTest, ANameThatItsFolderWasNotSyncedForIsGone) {
  Sync(Open("new"));
  ASSERT_EQ(::mkdir(Path("below").c_str(), 0700), 0);
  Sync(Open("below/file"));
  SyncFolder("below");
  Cut(Loss::kAll);
  EXPECT_EQ(Read("new"), "none");
  EXPECT_FALSE(fs::exists(Path("below")));
  Open("new");
  SyncFolder();
  Cut(Loss::kAll);
  EXPECT_EQ(Read("new"), "");
}

TEST_F(PowerLossTest, AFolderThatIsMadeDurableStays) {
  fs::create_directories(Path("a/b"));
  Cut(Loss::kAll);
  EXPECT_FALSE(fs::exists(Path("a")));
  EXPECT_EQ(MakeDurableFolders(Path("a/b")), OkStatus());
  Cut(Loss::kAll);
  EXPECT_TRUE(fs::exists(Path("a/b")));
  // Made by a process that ended before it was durable.
  fs::create_directory(Path("c"));
  EXPECT_EQ(MakeDurableFolders(Path("c")), OkStatus());
  Cut(Loss::kAll);
  EXPECT_TRUE(fs::exists(Path("c")));
}

TEST_F(PowerLossTest, ARenameIsUndoneAndTheOldFileIsBack) {
  Make("view", "old");
  Make("view.next", "new");
  ASSERT_EQ(::rename(Path("view.next").c_str(), Path("view").c_str()), 0);
  Cut(Loss::kAll);
  EXPECT_EQ(Read("view"), "old");
  EXPECT_EQ(Read("view.next"), "new");
  ASSERT_EQ(::rename(Path("view.next").c_str(), Path("view").c_str()), 0);
  SyncFolder();
  Cut(Loss::kAll);
  EXPECT_EQ(Read("view"), "new");
  EXPECT_EQ(Read("view.next"), "none");
}

TEST_F(PowerLossTest, WhatWasRemovedIsBackUnlessThatWasSynced) {
  Make("f", "text");
  ASSERT_EQ(::mkdir(Path("below").c_str(), 0700), 0);
  SyncFolder();
  Sync(Open("below/file"));
  SyncFolder("below");
  Cut(Loss::kNothing);
  ASSERT_TRUE(fs::remove(Path("f")));
  ASSERT_EQ(fs::remove_all(Path("below")), 2u);
  Cut(Loss::kAll);
  EXPECT_EQ(Read("f"), "text");
  EXPECT_EQ(Read("below/file"), "");
  ASSERT_TRUE(fs::remove(Path("f")));
  SyncFolder();
  Cut(Loss::kAll);
  EXPECT_EQ(Read("f"), "none");
}

TEST_F(PowerLossTest, AWriteMayBeTornAtAnySector) {
  std::set<size_t> lengths;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const fabric::Fd file = Make(std::to_string(seed), "head");
    Write(file, std::string(4 * kSector, 'x'), 4);
    Cut(Loss::kSome, seed);
    const std::string left = Read(std::to_string(seed));
    EXPECT_EQ(left, "head" + std::string(left.size() - 4, 'x')) << seed;
    if (left.size() != 4 && left.size() != 4 + 4 * kSector) {
      EXPECT_EQ(left.size() % kSector, 0u) << seed;
    }
    lengths.insert(left.size());
  }
  EXPECT_EQ(lengths.size(), 6u) << "none, all, and each of four places between";
}

TEST_F(PowerLossTest, OfWhatIsOverwrittenEachSectorIsOldOrNew) {
  const std::string old(8 * kSector, 'a');
  uint64_t mixed = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const fabric::Fd file = Make(std::to_string(seed), old);
    Write(file, std::string(old.size(), 'b'), 0);
    Write(file, std::string(old.size(), 'c'), 0);
    Cut(Loss::kSome, seed);
    const std::string left = Read(std::to_string(seed));
    ASSERT_EQ(left.size(), old.size());
    bool newer_first = false;
    for (size_t at = 0; at < left.size(); at += kSector) {
      EXPECT_EQ(left.substr(at, kSector), std::string(kSector, left[at])) << seed;
      newer_first = newer_first || (at > 0 && left[at - kSector] < left[at]);
    }
    if (newer_first) ++mixed;  // no prefix of the writes leaves that
  }
  EXPECT_GT(mixed, 0u);
}

TEST_F(PowerLossTest, ASeedRepeatsItsCut) {
  std::set<std::string> left;
  for (int i = 0; i < 3; ++i) {
    const fabric::Fd file = Make("f", std::string(8 * kSector, 'a'));
    Write(file, std::string(8 * kSector, 'b'), 0);
    Cut(Loss::kSome, 11);
    left.insert(Read("f"));
  }
  EXPECT_EQ(left.size(), 1u);
}

TEST_F(PowerLossTest, ASyncThatIsLostIsAsIfThereWereNone) {
  const fabric::Fd file = Make("f", "a"), other = Make("g", "a");
  ::setenv(kLostSyncsVariable, "*/f", 1);  // NOLINT(concurrency-mt-unsafe)
  for (const fabric::Fd* one : {&file, &other}) {
    Write(*one, "b", 0);
    Sync(*one);
  }
  ::unsetenv(kLostSyncsVariable);  // NOLINT(concurrency-mt-unsafe)
  Cut(Loss::kAll);
  EXPECT_EQ(Read("f"), "a");
  EXPECT_EQ(Read("g"), "b");
}

TEST_F(PowerLossTest, FilesElsewhereAreLeftAlone) {
  const TempPath other("power-loss-other");
  const fabric::Fd file(::open(other.path().c_str(), O_RDWR | O_CREAT, 0600));
  Write(file, "x", 0);
  EXPECT_EQ(Cut(Loss::kAll).changes, 0u);
  EXPECT_EQ(fs::file_size(other.path()), 1u);
}

TEST_F(PowerLossTest, AChangeThatWouldNotBeSeenEndsTheProcess) {
  const fabric::Fd file = Make("f", "text");
  EXPECT_DEATH(std::ofstream{Path("f")}, "stdio would change a file unseen");
  EXPECT_DEATH((void)::mmap(nullptr, 4, PROT_WRITE, MAP_SHARED, file.get(), 0), "a shared mapping");
}

}  // namespace
}  // namespace ems::testing
