#pragma once
// What the tests of the durable index share: one in a temporary folder, its rows, and copies of its
// files that can be damaged.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "mp_server/ssd/disk/region_index.h"
#include "tests/mp_server/ssd/rocksdb_faults.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::testing {

using Rows = std::map<ssd::ObjectName, ssd::Row>;

inline ssd::Row MakeRow(uint64_t seed) {
  ssd::Row row;
  row.sequence = seed;
  row.region_sequence = seed << 20;
  row.value_checksum = ~seed;
  row.value_bytes = seed << 40;
  row.region = static_cast<uint32_t>(seed) + 1;
  row.offset_units = static_cast<uint32_t>(seed) + 2;
  row.key_bytes = static_cast<uint32_t>(seed) + 3;
  row.slot = static_cast<uint16_t>(seed + 4);
  return row;
}
inline bool Same(const ssd::Row& a, const ssd::Row& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

class RegionIndexTest : public ::testing::Test {
 protected:
  RegionIndexTest() { options_.folder = folder_ / "index"; }

  Status Open() {
    index_.reset();
    Result<std::unique_ptr<ssd::RegionIndex>> opened = ssd::RegionIndex::Open(options_);
    if (!opened.ok()) return opened.status();
    index_ = *std::move(opened);
    return OkStatus();
  }
  Status Put(const std::string& key, uint64_t seed, bool sync = false) {
    ssd::RowBatch batch;
    batch.Put(NameOf(key), MakeRow(seed));
    return index_->Write(batch, sync);
  }
  static Rows RowsOf(const ssd::RegionIndex& index, uint64_t unreadable_expected = 0) {
    Rows rows;
    uint64_t unreadable = 0;
    const Status walked =
        index.ForEach([&](const ssd::ObjectName& name,
                          const ssd::Row& row) { EXPECT_TRUE(rows.emplace(name, row).second); },
                      &unreadable);
    EXPECT_TRUE(walked.ok()) << walked;
    EXPECT_EQ(unreadable, unreadable_expected);
    return rows;
  }
  Rows RowsNow() const { return RowsOf(*index_); }
  // Whether exactly these keys are there, with the rows of these seeds.
  static void ExpectRows(const Rows& rows, const std::map<std::string, uint64_t>& expected) {
    EXPECT_EQ(rows.size(), expected.size());
    for (const auto& [key, seed] : expected) {
      const auto it = rows.find(NameOf(key));
      ASSERT_NE(it, rows.end()) << key;
      EXPECT_TRUE(Same(it->second, MakeRow(seed))) << key;
    }
  }
  // The files as they are at this moment: what a process that was killed leaves behind.
  std::string Copy(const std::string& name) const {
    const std::string to = folder_ / name;
    std::filesystem::remove_all(to);
    std::filesystem::copy(options_.folder, to, std::filesystem::copy_options::recursive);
    return to;
  }
  static Result<std::unique_ptr<ssd::RegionIndex>> OpenAt(const std::string& folder) {
    ssd::RegionIndex::Options options;
    options.folder = folder;
    return ssd::RegionIndex::Open(options);
  }
  // The newest file of `folder` whose name begins and ends like this; empty: none.
  static std::string Newest(const std::string& folder, std::string_view begin,
                            std::string_view end) {
    std::string newest;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const std::string name = file.path().filename().string();
      if (name.starts_with(begin) && name.ends_with(end)) newest = std::max(newest, name);
    }
    return newest.empty() ? "" : folder + "/" + newest;
  }

  static void FlipBit(const std::string& path, uint64_t at, char bit) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ bit));
    ASSERT_TRUE(file.good()) << path << " at " << at;
  }

  TempFolder folder_;
  FaultyDisk disk_;
  ssd::RegionIndex::Options options_;
  std::unique_ptr<ssd::RegionIndex> index_;
};

}  // namespace ems::testing
