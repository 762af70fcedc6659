// What must hold: what is moved is, byte for byte, what was written; and a record that is not what
// its row says is not moved.
#include "mp_server/ssd/moved_object.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

using testing::kStoreId;
using testing::MakeObject;
using testing::WrittenRecord;

class MovedObjectTest : public ::testing::Test {
 protected:
  MovedObjectTest() {
    Result<std::unique_ptr<RegionLog>> opened =
        RegionLog::Open(testing::LogOptions(folder_ / "regions", &files_, 4, kMiB));
    EMS_CHECK(opened.ok());
    log_ = *std::move(opened);
    region_ = testing::BeginRegion(log_.get());
    EMS_CHECK(region_ != nullptr);
  }
  Result<std::unique_ptr<DirtyObject>> Read(const WrittenRecord& record) {
    return MovedObject::Read(&files_, log_->Find(record.row.region)->fd.get(), kStoreId,
                             record.name, record.row);
  }
  // The byte that lies `offset` behind the record's start.
  void FlipBit(const WrittenRecord& record, uint64_t offset) {
    const uint64_t at = uint64_t{record.row.offset_units} * kPackUnit + offset;
    AlignedBuffer buffer;
    const MutableBytes block = buffer.Take(kBlockBytes);
    const uint64_t begin = at / kBlockBytes * kBlockBytes;
    ASSERT_TRUE(files_.Read(region_->fd.get(), block, begin).ok());
    block[at - begin] ^= std::byte{4};
    ASSERT_TRUE(files_.Write(region_->fd.get(), block, begin).ok());
  }
  static void ExpectSame(const DirtyObject& moved, const DirtyObject& object) {
    EXPECT_TRUE(moved.current());
    EXPECT_EQ(moved.key(), object.key());
    EXPECT_EQ(AsText(moved.value()), AsText(object.value()));
    EXPECT_EQ(moved.checksum(), object.checksum());
    EXPECT_EQ(moved.slot(), object.slot());
    ASSERT_EQ(moved.piece_sums().size(), object.piece_sums().size());
    EXPECT_TRUE(std::equal(moved.piece_sums().begin(), moved.piece_sums().end(),
                           object.piece_sums().begin()));
  }

  testing::TempFolder folder_;
  testing::FaultyFiles files_;
  std::unique_ptr<RegionLog> log_;
  Region* region_ = nullptr;
};

TEST_F(MovedObjectTest, ComesBackAsItWasWrittenWhateverItsSize) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, kAlignedFrom - 1,
                               kAlignedFrom, kAlignedFrom + 1, 3 * kAlignedFrom + 5}) {
    const std::string key = "key " + std::to_string(bytes);
    const auto record =
        testing::WriteRecord(&files_, region_, MakeObject(key, 8, bytes, testing::kNs, 4001), 1);
    const auto moved = Read(record);
    ASSERT_TRUE(moved.ok()) << bytes << ": " << moved.status();
    ExpectSame(**moved, *MakeObject(key, 8, bytes, testing::kNs, 4001));
  }
}

TEST_F(MovedObjectTest, IsFoundAmongPackedRecords) {
  std::vector<std::unique_ptr<DirtyObject>> objects;
  for (uint64_t i = 0; i < 100; ++i)
    objects.push_back(MakeObject("key " + std::to_string(i), i, 8 + 53 * i));
  const auto records = testing::WriteRecords(&files_, region_, std::move(objects), 1);
  ASSERT_EQ(records.size(), 100U);
  for (uint64_t i = 0; i < 100; ++i) {
    const auto moved = Read(records[i]);
    ASSERT_TRUE(moved.ok()) << i << ": " << moved.status();
    EXPECT_EQ(testing::PutIdOf("key " + std::to_string(i), (*moved)->value()), i);
  }
}

TEST_F(MovedObjectTest, CanBeWrittenWhereItGoesWithoutACopy) {
  for (const uint64_t bytes : {kAlignedFrom, 2 * kAlignedFrom + 1}) {
    const auto record = testing::WriteRecord(&files_, region_, MakeObject("k", 1, bytes), 1);
    const auto moved = Read(record);
    ASSERT_TRUE(moved.ok()) << moved.status();
    const ConstBytes value = (*moved)->value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(value.data()) % kBlockBytes, 0U);
    // The rest of the last block can be read.
    std::vector<std::byte> blocks(RoundUp(bytes, kBlockBytes));
    std::memcpy(blocks.data(), value.data(), blocks.size());
  }
}

TEST_F(MovedObjectTest, MovesFromRegionToRegion) {
  for (const uint64_t bytes : {uint64_t{100}, 3 * kAlignedFrom}) {
    WrittenRecord record = testing::WriteRecord(&files_, region_, MakeObject("k", 6, bytes), 1);
    for (int i = 0; i < 3; ++i) {
      auto moved = Read(record);
      ASSERT_TRUE(moved.ok()) << i << ": " << moved.status();
      Region* next = testing::BeginRegion(log_.get());
      ASSERT_NE(next, nullptr);
      record = testing::WriteRecord(&files_, next, *std::move(moved), 1);
      log_->Release(next);
    }
    const auto moved = Read(record);
    ASSERT_TRUE(moved.ok()) << moved.status();
    ExpectSame(**moved, *MakeObject("k", 6, bytes));
  }
}

TEST_F(MovedObjectTest, ADamagedPayloadIsNotMoved) {
  for (const uint64_t bytes : {uint64_t{3000}, 2 * kAlignedFrom + 9}) {
    const RecordShape shape(bytes, 1);
    for (const uint64_t at : {uint64_t{0}, bytes / 2, bytes - 1}) {
      const auto record = testing::WriteRecord(&files_, region_, MakeObject("k", 1, bytes), 1);
      ASSERT_TRUE(Read(record).ok());
      FlipBit(record, shape.payload_offset() + at);
      EXPECT_EQ(Read(record).status().code(), StatusCode::kDataLoss) << bytes << " " << at;
      FlipBit(record, shape.payload_offset() + at);
      EXPECT_TRUE(Read(record).ok());
      region_->fill_bytes = kBlockBytes;
    }
  }
}

TEST_F(MovedObjectTest, ADamagedHeadIsNotMoved) {
  const RecordShape shape(2 * kAlignedFrom, 3);
  const auto record =
      testing::WriteRecord(&files_, region_, MakeObject("key", 1, 2 * kAlignedFrom), 1);
  for (uint64_t at = 0; at < shape.head_bytes(); ++at) {
    FlipBit(record, at);
    EXPECT_EQ(Read(record).status().code(), StatusCode::kDataLoss) << at;
    FlipBit(record, at);
  }
  EXPECT_TRUE(Read(record).ok());
}

TEST_F(MovedObjectTest, ARecordOfSomethingElseIsNotMoved) {
  const auto record = testing::WriteRecord(&files_, region_, MakeObject("k", 1, 500), 5);
  const int fd = region_->fd.get();
  const auto read = [&](uint64_t store, const ObjectName& name, const Row& row) {
    return MovedObject::Read(&files_, fd, store, name, row).status().code();
  };
  EXPECT_EQ(read(kStoreId, record.name, record.row), StatusCode::kOk);
  EXPECT_EQ(read(kStoreId + 1, record.name, record.row), StatusCode::kDataLoss);
  EXPECT_EQ(read(kStoreId, testing::NameOf("l"), record.row), StatusCode::kDataLoss);
  EXPECT_EQ(read(kStoreId, testing::NameOf("k", testing::kOtherNs), record.row),
            StatusCode::kDataLoss);
  Row older = record.row;
  older.sequence = 4;
  EXPECT_EQ(read(kStoreId, record.name, older), StatusCode::kDataLoss);
  Row beside = record.row;
  ++beside.offset_units;
  EXPECT_EQ(read(kStoreId, record.name, beside), StatusCode::kDataLoss);
}

TEST_F(MovedObjectTest, ARecordOfAnEarlierUseOfTheRegionIsNotMoved) {
  auto record = testing::WriteRecord(&files_, region_, MakeObject("k", 1, 500), 5);
  log_->Release(region_);
  ASSERT_EQ(testing::BeginRegion(log_.get()), region_);
  record.row.region_sequence = region_->sequence;  // as a new row of the same place would say
  EXPECT_EQ(Read(record).status().code(), StatusCode::kDataLoss);
}

TEST_F(MovedObjectTest, ADiskThatDoesNotReadIsUnavailable) {
  const auto record = testing::WriteRecord(&files_, region_, MakeObject("k", 1, 500), 1);
  files_.Fail(testing::FaultyFiles::kRead, StatusCode::kUnavailable, 1);
  EXPECT_EQ(Read(record).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Read(record).ok()) << "nothing is lost by it";
  WrittenRecord beyond = record;
  beyond.row.offset_units = static_cast<uint32_t>(kMiB / kPackUnit);
  EXPECT_EQ(Read(beyond).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::ssd
