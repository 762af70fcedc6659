// What must hold: what a group writes reads back as the objects that went in, at the places that
// their rows say, and in blocks that direct I/O takes.
#include "mp_server/ssd/write_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "mp_server/ssd/disk/stored_record.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

using ::ems::testing::BeginRegion;
using ::ems::testing::kStoreId;
using ::ems::testing::LogOptions;
using ::ems::testing::MakeObject;
using ::ems::testing::NameOf;
using ::ems::testing::TestObject;

class Group final : public WriteGroup {
 public:
  void OnDone(int64_t) override {}
};

class WriteGroupTest : public ::testing::Test {
 protected:
  WriteGroupTest() {
    log_ = *RegionLog::Open(LogOptions(folder_ / "regions", &files_, 2, 64 * kMiB));
    region_ = BeginRegion(log_.get());
  }

  static RecordShape ShapeOf(const DirtyObject& object) {
    return {object.value().size(), object.key().size()};
  }
  void Add(Group* group, std::unique_ptr<TestObject> object, bool durable = false) {
    const RecordShape shape = ShapeOf(*object);
    WriteJob job;
    job.name = NameOf(object->key());
    job.sequence = next_sequence_++;
    job.value_bytes = shape.value_bytes;
    job.durable = durable;
    job.object = std::move(object);
    group->Add(std::move(job), shape, kStoreId);
  }

  // Places the group, checks what is to be written, and writes it.
  void Write(Group* group) {
    const uint64_t fill = region_->fill_bytes;
    const uint64_t bytes = group->bytes();
    group->Place();
    EXPECT_TRUE(group->write);
    EXPECT_EQ(group->fd, region_->fd.get());
    EXPECT_EQ(group->offset, fill);
    EXPECT_EQ(region_->fill_bytes, fill + bytes);
    EXPECT_EQ(group->offset % kBlockBytes, 0);
    EXPECT_LE(group->parts.size(), 1024) << "what one system call takes";
    uint64_t at = group->offset;
    for (const iovec& part : group->parts) {
      EXPECT_EQ(part.iov_len % kBlockBytes, 0);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(part.iov_base) % kBlockBytes, 0);
      const ConstBytes data(static_cast<const std::byte*>(part.iov_base), part.iov_len);
      ASSERT_TRUE(files_.Write(group->fd, data, at).ok());
      at += part.iov_len;
    }
    EXPECT_EQ(at, fill + bytes);
  }

  std::vector<std::byte> ReadRegion(uint64_t begin, uint64_t bytes) {
    AlignedBuffer buffer;
    const MutableBytes memory = buffer.Take(bytes);
    EXPECT_TRUE(files_.Read(region_->fd.get(), memory, begin).ok());
    return {memory.begin(), memory.end()};
  }

  // Reads the record of `job` as a reader would, and compares all of it.
  void ExpectReadsBack(const WriteJob& job) {
    const DirtyObject& object = *job.object;
    SCOPED_TRACE(fmt::format("key {} of {} bytes", object.key(), object.value().size()));
    const Row& row = job.row;
    EXPECT_EQ(row.sequence, job.sequence);
    EXPECT_EQ(row.region, region_->id);
    EXPECT_EQ(row.region_sequence, region_->sequence);
    EXPECT_EQ(row.value_bytes, object.value().size());
    EXPECT_EQ(row.value_checksum, object.checksum());
    EXPECT_EQ(row.key_bytes, object.key().size());
    EXPECT_EQ(row.slot, object.slot());
    const RecordBlocks blocks(row);
    EXPECT_GE(blocks.begin, kBlockBytes) << "the region's header is there";
    EXPECT_LE(blocks.begin + blocks.bytes(), region_->fill_bytes);
    const std::vector<std::byte> all = ReadRegion(blocks.begin, blocks.bytes());
    const ConstBytes record = ConstBytes(all).subspan(blocks.skip);
    const Head head = CheckHead(record, Expect(kStoreId, job.name, row));
    ASSERT_EQ(head.verdict, HeadVerdict::kGood);
    EXPECT_EQ(head.key, object.key());
    const ConstBytes value = record.subspan(blocks.shape.payload_offset(), row.value_bytes);
    EXPECT_TRUE(std::ranges::equal(value, object.value()));
    std::vector<uint64_t> sums(PieceCount(row.value_bytes));
    EXPECT_TRUE(CheckValue(value, row.value_checksum, sums));
    EXPECT_TRUE(std::ranges::equal(sums, object.piece_sums()));
    if (sums.size() > 1) {
      EXPECT_TRUE(std::ranges::equal(head.piece_sums, std::as_bytes(object.piece_sums())));
    }
    EXPECT_TRUE(!blocks.shape.aligned || blocks.skip == 0) << "it starts on a block";
  }

  const ::ems::testing::TempFolder folder_;
  RegionFiles files_;
  std::unique_ptr<RegionLog> log_;
  Region* region_ = nullptr;
  uint64_t next_sequence_ = 1;
};

TEST_F(WriteGroupTest, PackedRecordsOfAllSizesReadBack) {
  Group group;
  group.Start(region_, false);
  uint64_t id = 0;
  for (const uint64_t bytes : {0, 1, 7, 63, 64, 65, 4007, 4008, 4009, 4096, 65535}) {
    for (const size_t key_bytes : {1, 40, 255}) {
      auto object = MakeObject(std::string(key_bytes, static_cast<char>('a' + id % 26)), id, bytes);
      ++id;
      ASSERT_TRUE(group.Fits(ShapeOf(*object)));
      Add(&group, std::move(object));
    }
  }
  Write(&group);
  for (const WriteJob& job : group.jobs()) ExpectReadsBack(job);
}

TEST_F(WriteGroupTest, PackedRecordsFollowEachOtherAndTheLastBlockIsFilledUpWithZeroes) {
  Group group;
  group.Start(region_, false);
  for (int i = 0; i < 3; ++i) Add(&group, MakeObject("key", 1, 1000));
  Write(&group);
  const uint64_t record_bytes = ShapeOf(*group.jobs()[0].object).record_bytes();
  EXPECT_EQ(record_bytes % kPackUnit, 0);
  for (uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(group.jobs()[i].row.offset_units * kPackUnit, kBlockBytes + i * record_bytes);
  EXPECT_EQ(group.bytes(), kBlockBytes);
  const std::vector<std::byte> block = ReadRegion(kBlockBytes, kBlockBytes);
  EXPECT_TRUE(std::all_of(block.begin() + static_cast<ptrdiff_t>(3 * record_bytes), block.end(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(WriteGroupTest, AlignedRecordsReadBack) {
  Group group;
  group.Start(region_, true);
  uint64_t id = 0;
  for (const uint64_t bytes : {65536, 65537, 69632, 131072, 200001}) {
    auto object = MakeObject("key" + std::to_string(id), id, bytes);
    ++id;
    ASSERT_TRUE(group.Fits(ShapeOf(*object)));
    Add(&group, std::move(object), false);
  }
  Write(&group);
  for (const WriteJob& job : group.jobs()) ExpectReadsBack(job);
}

TEST_F(WriteGroupTest, AnAlignedPayloadIsWrittenFromWhereItLies) {
  Group group;
  group.Start(region_, true);
  auto object = MakeObject("key", 1, 70000);
  const std::byte* value = object->value().data();
  Add(&group, std::move(object));
  group.Place();
  EXPECT_TRUE(std::any_of(group.parts.begin(), group.parts.end(),
                          [&](const iovec& part) { return part.iov_base == value; }));
}

TEST_F(WriteGroupTest, AnAlignedRecordTakesAHeadAndItsValueInWholeBlocks) {
  Group group;
  group.Start(region_, true);
  Add(&group, MakeObject("key", 1, 65537));
  EXPECT_EQ(group.bytes(), kBlockBytes + 65536 + kBlockBytes);
}

TEST_F(WriteGroupTest, ALargeValueHasAGroupOfItsOwn) {
  Group group;
  group.Start(region_, true);
  auto object = MakeObject("key", 1, 3 * kMiB + 1);
  ASSERT_TRUE(group.Fits(ShapeOf(*object))) << "the first always does";
  Add(&group, std::move(object));
  EXPECT_FALSE(group.Fits(RecordShape(kAlignedFrom, 1)));
  Write(&group);
  ExpectReadsBack(group.jobs()[0]);
}

TEST_F(WriteGroupTest, ATableOfPiecesThatNeedsMoreThanABlockReadsBack) {
  Group group;
  group.Start(region_, true);
  auto object = MakeObject("key", 1, 34 * kMiB + 5);
  ASSERT_GT(ShapeOf(*object).payload_offset(), kBlockBytes);
  Add(&group, std::move(object));
  Write(&group);
  ExpectReadsBack(group.jobs()[0]);
}

TEST_F(WriteGroupTest, AGroupEndsBeforeItIsLargerThanItMayBe) {
  for (const bool aligned : {false, true}) {
    Group group;
    group.Start(region_, aligned);
    const uint64_t bytes = aligned ? 100 * kKiB : 60 * kKiB;
    const RecordShape shape(bytes, 3);
    while (group.Fits(shape)) Add(&group, MakeObject("key", 1, bytes));
    EXPECT_LE(group.bytes(), WriteGroup::kGroupBytes);
    EXPECT_GT(group.bytes() + shape.record_bytes(), WriteGroup::kGroupBytes);
    EXPECT_TRUE(aligned || group.Fits(RecordShape(0, 1))) << "a smaller one may";
  }
}

TEST_F(WriteGroupTest, AGroupTakesSoManyObjectsAndNoMore) {
  Group group;
  group.Start(region_, false);
  const RecordShape shape(1, 3);
  while (group.Fits(shape)) Add(&group, MakeObject("key", 1, 1));
  EXPECT_EQ(group.jobs().size(), WriteGroup::kGroupJobsMax);
  Write(&group);
  ExpectReadsBack(group.jobs().front());
  ExpectReadsBack(group.jobs().back());
}

TEST_F(WriteGroupTest, AFullGroupOfPackedRecordsReadsBack) {
  Group group;
  group.Start(region_, false);
  // Exactly kGroupBytes: 16 records of 64 KiB.
  const uint64_t bytes = 64 * kKiB - sizeof(RecordHeader) - 3;
  while (group.Fits(RecordShape(bytes, 3)))
    Add(&group, MakeObject("key", group.jobs().size(), bytes));
  ASSERT_EQ(group.bytes(), WriteGroup::kGroupBytes);
  Write(&group);
  for (const WriteJob& job : group.jobs()) ExpectReadsBack(job);
}

TEST_F(WriteGroupTest, GroupsOfARegionLieBehindEachOther) {
  Group packed;
  Group aligned;
  packed.Start(region_, false);
  Add(&packed, MakeObject("p", 1, 100));
  aligned.Start(region_, true);
  Add(&aligned, MakeObject("a", 2, 70000));
  Add(&packed, MakeObject("q", 3, 5000));
  // Where they are is known when they are placed, in whichever order.
  Write(&aligned);
  Write(&packed);
  for (const WriteJob& job : packed.jobs()) ExpectReadsBack(job);
  ExpectReadsBack(aligned.jobs()[0]);
  EXPECT_LT(aligned.jobs()[0].row.offset_units, packed.jobs()[0].row.offset_units);
}

TEST_F(WriteGroupTest, AGroupIsDurableWhenOneOfItsObjectsIs) {
  Group group;
  group.Start(region_, false);
  EXPECT_FALSE(group.durable());
  Add(&group, MakeObject("a", 1, 1));
  EXPECT_FALSE(group.durable());
  Add(&group, MakeObject("b", 1, 1), true);
  Add(&group, MakeObject("c", 1, 1));
  EXPECT_TRUE(group.durable());
  group.Clear();
  group.Start(region_, false);
  EXPECT_FALSE(group.durable());
}

TEST_F(WriteGroupTest, ClearLetsTheObjectsGo) {
  Group group;
  group.Start(region_, true);
  auto object = MakeObject("a", 1, 65536);
  const TestObject::Flag flag = object->current_flag();
  Add(&group, std::move(object));
  EXPECT_EQ(flag.use_count(), 2);
  group.Clear();
  EXPECT_EQ(flag.use_count(), 1);
  EXPECT_TRUE(group.jobs().empty());
}

TEST_F(WriteGroupTest, AGroupThatIsUsedAgainWritesNothingOfItsPast) {
  Group group;
  group.Start(region_, false);
  Add(&group, MakeObject("long", 1, 60000));
  Write(&group);
  group.Clear();
  const uint64_t begin = region_->fill_bytes;
  group.Start(region_, false);
  EXPECT_EQ(group.bytes(), 0);
  Add(&group, MakeObject("s", 2, 9));
  Write(&group);
  ExpectReadsBack(group.jobs()[0]);
  const std::vector<std::byte> block = ReadRegion(begin, kBlockBytes);
  const uint64_t used = sizeof(RecordHeader) + 1 + 9;
  EXPECT_TRUE(std::all_of(block.begin() + static_cast<ptrdiff_t>(used), block.end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  group.Clear();
  group.Start(region_, true);
  Add(&group, MakeObject("a", 3, 65536));
  const uint64_t aligned_begin = region_->fill_bytes;
  Write(&group);
  ExpectReadsBack(group.jobs()[0]);
  const std::vector<std::byte> head = ReadRegion(aligned_begin, kBlockBytes);
  EXPECT_TRUE(std::all_of(head.begin() + sizeof(RecordHeader) + 1, head.end(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

}  // namespace
}  // namespace ems::ssd
