// What must hold: a read gives the whole value that was meant or says why not, once, and a disk
// that does not answer costs nobody any time.
#include "mp_server/ssd/record_reader.h"

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

using ::ems::testing::BeginRegion;
using ::ems::testing::kPatience;
using ::ems::testing::kStoreId;
using ::ems::testing::LogOptions;
using ::ems::testing::MakeObject;
using ::ems::testing::NameOf;
using ::ems::testing::PutIdOf;
using ::ems::testing::Waiter;
using ::ems::testing::WriteRecords;
using ::ems::testing::WrittenRecord;

// Does nothing until it is told to, and then on the caller's thread. Threading: thread-safe.
class HeldEngine final : public IoEngine {
 public:
  void Submit(IoOp* op) override {
    auto state = state_.Lock();
    ++state->submitted;
    state->held.push_back(op);
  }
  std::string_view name() const override { return "held"; }

  size_t held() {
    auto state = state_.Lock();
    return state->held.size();
  }
  uint64_t submitted() {
    auto state = state_.Lock();
    return state->submitted;
  }
  // The one that waits longest but for `at`.
  IoOp* Take(size_t at = 0) {
    auto state = state_.Lock();
    EMS_CHECK(at < state->held.size(), "{} are held", state->held.size());
    IoOp* op = state->held[at];
    state->held.erase(state->held.begin() + static_cast<ptrdiff_t>(at));
    return op;
  }
  static int64_t Transfer(const IoOp& op) {
    return ::preadv(op.fd, op.parts.data(), static_cast<int>(op.parts.size()),
                    static_cast<off_t>(op.offset));
  }
  void Complete(size_t at = 0) {
    IoOp* op = Take(at);
    op->OnDone(Transfer(*op));
  }
  void Fail(int64_t result = -EIO) { Take()->OnDone(result); }

 private:
  struct State {
    std::vector<IoOp*> held;
    uint64_t submitted = 0;
  };
  Guarded<State> state_;
};

// What became of a read, and room for its value.
struct Reading {
  explicit Reading(const Row& row) : bytes(row.value_bytes), sums(PieceCount(bytes)) {
    const MutableBytes all = memory.Take(std::max<uint64_t>(bytes, 1));
    std::fill(all.begin(), all.end(), std::byte{0xdd});
    value = all.first(bytes);
  }
  uint64_t bytes;
  AlignedBuffer memory;
  MutableBytes value;
  std::vector<uint64_t> sums;
  std::atomic<int> calls{0};
  std::atomic<ReadOutcome> outcome{ReadOutcome::kFailed};
  Waiter done;
};

class RecordReaderTest : public ::testing::Test {
 protected:
  RecordReaderTest() {
    log_ = *RegionLog::Open(LogOptions(folder_ / "regions", &files_, 2, 8 * kMiB));
    region_ = BeginRegion(log_.get());
    MakeReader(64, &engine_);
  }
  ~RecordReaderTest() override { EMS_CHECK(engine_.held() == 0, "{} reads left", engine_.held()); }

  void MakeReader(uint32_t reads_max, IoEngine* engine) {
    RecordReader::Options options;
    options.io = engine;
    options.store_id = kStoreId;
    options.reads_max = reads_max;
    options.regions_max = 2;
    options.clock = &clock_;
    reader_ = std::make_unique<RecordReader>(options);
    reader_->SetRegion(region_->id, region_->fd.get());
  }

  // With the put id `sequence_`. A packed one lies behind another, in the middle of a block.
  WrittenRecord Write(const std::string& key, uint64_t bytes) {
    sequence_ += 2;
    std::vector<std::unique_ptr<DirtyObject>> objects;
    if (bytes < kAlignedFrom) objects.push_back(MakeObject("in front", sequence_ - 1, 100));
    const uint64_t first = sequence_ - objects.size();
    objects.push_back(MakeObject(key, sequence_, bytes));
    return WriteRecords(&files_, region_, std::move(objects), first).back();
  }
  bool Read(const WrittenRecord& record, const std::string& key, Reading* reading) {
    return reader_->Read(record.name, key, record.row, {reading->value, reading->sums},
                         [reading](ReadOutcome outcome) {
                           reading->outcome.store(outcome);
                           reading->calls.fetch_add(1);
                           reading->done.wake()();
                         });
  }
  // Lets everything that is asked for be done, the second attempt included.
  ReadOutcome ReadNow(const WrittenRecord& record, const std::string& key) {
    Reading reading(record.row);
    EXPECT_TRUE(Read(record, key, &reading));
    while (engine_.held() > 0) engine_.Complete();
    EXPECT_EQ(reading.calls.load(), 1);
    return reading.outcome.load();
  }
  // Turns one byte of the record over on the disk.
  void Damage(const Row& row, uint64_t offset_in_record) {
    const uint64_t at = uint64_t{row.offset_units} * kPackUnit + offset_in_record;
    AlignedBuffer buffer;
    const MutableBytes block = buffer.Take(kBlockBytes);
    const uint64_t begin = at / kBlockBytes * kBlockBytes;
    ASSERT_TRUE(files_.Read(region_->fd.get(), block, begin).ok());
    block[at - begin] ^= std::byte{1};
    ASSERT_TRUE(files_.Write(region_->fd.get(), block, begin).ok());
  }

  const ::ems::testing::TempFolder folder_;
  RegionFiles files_;
  ManualClock clock_;
  std::unique_ptr<RegionLog> log_;
  Region* region_ = nullptr;
  HeldEngine engine_;
  std::unique_ptr<RecordReader> reader_;
  uint64_t sequence_ = 0;
};

TEST_F(RecordReaderTest, ValuesOfAllSizesComeBackWhole) {
  for (const uint64_t bytes : {8, 4096, 65535, 65536, 65537, 131072, 1048577, 5242881}) {
    SCOPED_TRACE(bytes);
    const WrittenRecord record = Write("key", bytes);
    Reading reading(record.row);
    ASSERT_TRUE(Read(record, "key", &reading));
    EXPECT_LE(engine_.held(), RecordReader::kPartsMax);
    while (engine_.held() > 0) engine_.Complete();
    ASSERT_EQ(reading.calls.load(), 1);
    ASSERT_EQ(reading.outcome.load(), ReadOutcome::kOk);
    EXPECT_EQ(PutIdOf("key", reading.value), sequence_);
    const auto object = MakeObject("key", sequence_, bytes);
    EXPECT_TRUE(std::ranges::equal(reading.sums, object->piece_sums()));
  }
}

TEST_F(RecordReaderTest, ValuesOfNothingAndOfOneByteComeBack) {
  for (const uint64_t bytes : {0, 1}) {
    const WrittenRecord record = Write("key", bytes);
    Reading reading(record.row);
    ASSERT_TRUE(Read(record, "key", &reading));
    engine_.Complete();
    EXPECT_EQ(reading.outcome.load(), ReadOutcome::kOk);
    const auto object = MakeObject("key", sequence_, bytes);
    EXPECT_TRUE(std::ranges::equal(reading.value, object->value()));
    EXPECT_TRUE(std::ranges::equal(reading.sums, object->piece_sums()));
  }
}

TEST_F(RecordReaderTest, PartsMayLandInAnyOrder) {
  const WrittenRecord record = Write("key", 3 * kMiB + 5000);
  std::minstd_rand random(7);
  for (int round = 0; round < 20; ++round) {
    Reading reading(record.row);
    ASSERT_TRUE(Read(record, "key", &reading));
    ASSERT_GT(engine_.held(), 8U);
    while (engine_.held() > 0) {
      EXPECT_EQ(reading.calls.load(), 0) << "not all of it is there";
      engine_.Complete(random() % engine_.held());
    }
    ASSERT_EQ(reading.calls.load(), 1);
    ASSERT_EQ(reading.outcome.load(), ReadOutcome::kOk);
    EXPECT_EQ(PutIdOf("key", reading.value), sequence_);
  }
}

TEST_F(RecordReaderTest, APartThatFailsIsTriedOnceMoreWithAllOthers) {
  const WrittenRecord record = Write("key", kMiB);
  for (size_t bad = 0; bad < 4; ++bad) {
    Reading reading(record.row);
    ASSERT_TRUE(Read(record, "key", &reading));
    const size_t parts = engine_.held();
    ASSERT_EQ(parts, 4U);
    for (size_t i = 0; i < parts; ++i) i == bad ? engine_.Fail(4096) : engine_.Complete();
    EXPECT_EQ(reading.calls.load(), 0);
    EXPECT_EQ(engine_.held(), parts);
    while (engine_.held() > 0) engine_.Complete();
    EXPECT_EQ(reading.outcome.load(), ReadOutcome::kOk);
    EXPECT_EQ(PutIdOf("key", reading.value), sequence_);

    Reading second(record.row);
    ASSERT_TRUE(Read(record, "key", &second));
    for (size_t i = 0; i < 2 * parts; ++i) i % parts == bad ? engine_.Fail() : engine_.Complete();
    EXPECT_EQ(second.calls.load(), 1);
    EXPECT_EQ(second.outcome.load(), ReadOutcome::kFailed);
  }
}

TEST_F(RecordReaderTest, NothingBehindAPackedValueIsTouched) {
  const WrittenRecord record = Write("key", 100);
  Reading reading(record.row);
  ASSERT_TRUE(Read(record, "key", &reading));
  engine_.Complete();
  ASSERT_EQ(reading.outcome.load(), ReadOutcome::kOk);
  EXPECT_EQ(reading.value.data()[100], std::byte{0xdd});
}

TEST_F(RecordReaderTest, AnotherKeyOfTheSameHashIsTold) {
  for (const uint64_t bytes : {100, 100000}) {
    const WrittenRecord record = Write("key", bytes);
    EXPECT_EQ(ReadNow(record, "yek"), ReadOutcome::kOther);
    EXPECT_EQ(ReadNow(record, "longer key"), ReadOutcome::kOther);
    EXPECT_EQ(ReadNow(record, ""), ReadOutcome::kOther);
    EXPECT_EQ(ReadNow(record, "key"), ReadOutcome::kOk);
  }
}

TEST_F(RecordReaderTest, WhatLayInARegionThatIsUsedAgainIsGone) {
  for (const uint64_t bytes : {100, 100000}) {
    const WrittenRecord record = Write("key", bytes);
    log_->Release(region_);
    ASSERT_TRUE(log_->Begin(region_, ::ems::testing::kNs).ok());
    const WrittenRecord newer = Write("key", bytes);
    ASSERT_EQ(record.row.offset_units, newer.row.offset_units);
    const uint64_t submitted = engine_.submitted();
    EXPECT_EQ(ReadNow(record, "key"), ReadOutcome::kGone);
    EXPECT_EQ(engine_.submitted(), submitted + 1) << "a second look would find the same";
    EXPECT_EQ(ReadNow(newer, "key"), ReadOutcome::kOk);
    log_->Release(region_);
    ASSERT_TRUE(log_->Begin(region_, ::ems::testing::kNs).ok());
  }
}

TEST_F(RecordReaderTest, ASoundRecordThatWasNotMeantIsGone) {
  const WrittenRecord record = Write("key", 100);
  const WrittenRecord other = Write("other", 100);
  WrittenRecord wrong = record;
  wrong.row.offset_units = other.row.offset_units;
  EXPECT_EQ(ReadNow(wrong, "key"), ReadOutcome::kGone) << "misdirected";
  wrong = record;
  wrong.name = NameOf("key", ::ems::testing::kOtherNs);
  EXPECT_EQ(ReadNow(wrong, "key"), ReadOutcome::kGone) << "of another namespace";
  wrong = record;
  ++wrong.row.sequence;
  EXPECT_EQ(ReadNow(wrong, "key"), ReadOutcome::kGone) << "of another Put";
  wrong = record;
  wrong.row.offset_units += 1;
  EXPECT_EQ(ReadNow(wrong, "key"), ReadOutcome::kGone) << "not a record at all";
  EXPECT_EQ(reader_->stats().damaged, 0);
}

TEST_F(RecordReaderTest, ADamagedRecordIsReadTwiceAndThenToldSo) {
  for (const uint64_t bytes : {1, 100, 65535, 65536, 1048577}) {
    SCOPED_TRACE(bytes);
    const WrittenRecord record = Write("key", bytes);
    const RecordShape shape(bytes, 3);
    Damage(record.row, shape.payload_offset() + bytes - 1);
    const uint64_t submitted = engine_.submitted();
    EXPECT_EQ(ReadNow(record, "key"), ReadOutcome::kDamaged);
    EXPECT_EQ(engine_.submitted(), submitted + 2 * (bytes / (256 * kKiB) + 1)) << "all, twice";
  }
  EXPECT_EQ(reader_->stats().damaged, 5);
  EXPECT_EQ(reader_->stats().bytes, 0);
}

TEST_F(RecordReaderTest, ADamagedKeyOrTableOfPiecesIsDamage) {
  const WrittenRecord small = Write("key", 100);
  Damage(small.row, sizeof(RecordHeader) + 1);
  EXPECT_EQ(ReadNow(small, "key"), ReadOutcome::kDamaged);
  const WrittenRecord large = Write("key", 200000);
  Damage(large.row, sizeof(RecordHeader) + 1);
  EXPECT_EQ(ReadNow(large, "key"), ReadOutcome::kDamaged);
}

TEST_F(RecordReaderTest, WhatIsDamagedOnlyOnTheWayIsReadAgainAndGood) {
  for (const uint64_t bytes : {100, 100000}) {
    const WrittenRecord record = Write("key", bytes);
    Reading reading(record.row);
    ASSERT_TRUE(Read(record, "key", &reading));
    IoOp* op = engine_.Take();
    const int64_t result = HeldEngine::Transfer(*op);
    const RecordBlocks blocks(record.row);
    const uint64_t at = blocks.shape.aligned ? 0 : blocks.skip + blocks.shape.payload_offset();
    static_cast<std::byte*>(op->parts.back().iov_base)[at] ^= std::byte{1};
    op->OnDone(result);
    EXPECT_EQ(reading.calls.load(), 0);
    ASSERT_EQ(engine_.held(), 1);
    engine_.Complete();
    EXPECT_EQ(reading.calls.load(), 1);
    EXPECT_EQ(reading.outcome.load(), ReadOutcome::kOk);
    EXPECT_EQ(PutIdOf("key", reading.value), sequence_);
  }
  EXPECT_EQ(reader_->stats().damaged, 0);
}

TEST_F(RecordReaderTest, AReadThatFailsIsTriedOnceMore) {
  const WrittenRecord record = Write("key", 100000);
  Reading reading(record.row);
  ASSERT_TRUE(Read(record, "key", &reading));
  engine_.Fail();
  EXPECT_EQ(reading.calls.load(), 0);
  engine_.Complete();
  EXPECT_EQ(reading.outcome.load(), ReadOutcome::kOk);
  Reading second(record.row);
  ASSERT_TRUE(Read(record, "key", &second));
  engine_.Fail();
  engine_.Fail(4096);  // the file ends there
  EXPECT_EQ(second.calls.load(), 1);
  EXPECT_EQ(second.outcome.load(), ReadOutcome::kFailed);
  EXPECT_EQ(engine_.held(), 0);
  EXPECT_EQ(reader_->stats().failed, 1);
}

TEST_F(RecordReaderTest, ARowThatPointsBehindTheRegionFails) {
  WrittenRecord record = Write("key", 100000);
  record.row.offset_units = static_cast<uint32_t>(8 * kMiB / kPackUnit);
  EXPECT_EQ(ReadNow(record, "key"), ReadOutcome::kFailed);
}

TEST_F(RecordReaderTest, ARegionThatIsNotKnownIsRefused) {
  WrittenRecord record = Write("key", 100);
  Reading reading(record.row);
  record.row.region = 1 - region_->id;
  EXPECT_FALSE(Read(record, "key", &reading));
  record.row.region = 77;
  EXPECT_FALSE(Read(record, "key", &reading));
  EXPECT_EQ(reading.calls.load(), 0);
  EXPECT_EQ(reader_->stats().refused, 2);
}

TEST_F(RecordReaderTest, MoreReadsThanMayBeUnderWayAreRefused) {
  MakeReader(2, &engine_);
  const WrittenRecord record = Write("key", 100);
  Reading first(record.row);
  Reading second(record.row);
  Reading third(record.row);
  ASSERT_TRUE(Read(record, "key", &first));
  ASSERT_TRUE(Read(record, "key", &second));
  EXPECT_EQ(reader_->stats().under_way, 2);
  EXPECT_FALSE(Read(record, "key", &third));
  engine_.Complete();
  EXPECT_EQ(first.calls.load(), 1);
  EXPECT_TRUE(Read(record, "key", &third)) << "there is room again";
  engine_.Complete();
  engine_.Complete();
  EXPECT_EQ(third.outcome.load(), ReadOutcome::kOk);
  const RecordReader::Stats stats = reader_->stats();
  EXPECT_EQ(stats.under_way, 0);
  EXPECT_EQ(stats.refused, 1);
  EXPECT_EQ(stats.reads, 3);
  EXPECT_EQ(stats.bytes, 300);
}

TEST_F(RecordReaderTest, ADiskThatAnswersNoMoreIsLeftAlone) {
  const WrittenRecord record = Write("key", 100);
  std::vector<std::unique_ptr<Reading>> stuck;
  for (int i = 0; i < 4; ++i) {
    stuck.push_back(std::make_unique<Reading>(record.row));
    ASSERT_TRUE(Read(record, "key", stuck.back().get()));
  }
  Reading another(record.row);
  clock_.Advance(std::chrono::milliseconds(501));
  EXPECT_FALSE(Read(record, "key", &another)) << "refused at once";
  EXPECT_EQ(engine_.held(), 4);
  EXPECT_EQ(reader_->stats().refused, 1);
  clock_.Advance(std::chrono::hours(1));
  EXPECT_FALSE(Read(record, "key", &another)) << "none has come back yet";
  for (const auto& reading : stuck) {
    engine_.Complete();
    EXPECT_EQ(reading->outcome.load(), ReadOutcome::kOk) << "late, but it is what was meant";
  }
  EXPECT_FALSE(Read(record, "key", &another)) << "too slow: a second of rest";
  clock_.Advance(std::chrono::milliseconds(999));
  EXPECT_FALSE(Read(record, "key", &another));
  clock_.Advance(std::chrono::milliseconds(2));
  EXPECT_TRUE(Read(record, "key", &another));
  engine_.Complete();
  EXPECT_EQ(another.outcome.load(), ReadOutcome::kOk);
}

TEST_F(RecordReaderTest, ADiskThatAnswersSlowlyIsLeftAloneForASecond) {
  const WrittenRecord record = Write("key", 100);
  EXPECT_EQ(ReadNow(record, "key"), ReadOutcome::kOk);
  Reading slow(record.row);
  ASSERT_TRUE(Read(record, "key", &slow));
  clock_.Advance(std::chrono::milliseconds(600));
  engine_.Complete();
  Reading next(record.row);
  EXPECT_FALSE(Read(record, "key", &next));
  clock_.Advance(std::chrono::milliseconds(1001));
  EXPECT_TRUE(Read(record, "key", &next));
  engine_.Complete();
}

TEST_F(RecordReaderTest, ADiskThatGoesOnAnsweringIsNotStuckHoweverManyWait) {
  const WrittenRecord record = Write("key", 100);
  std::vector<std::unique_ptr<Reading>> readings;
  for (int i = 0; i < 20; ++i) {
    readings.push_back(std::make_unique<Reading>(record.row));
    ASSERT_TRUE(Read(record, "key", readings.back().get())) << i;
    if (i < 8) continue;
    clock_.Advance(std::chrono::milliseconds(40));
    engine_.Complete();
  }
  while (engine_.held() > 0) engine_.Complete();
}

TEST_F(RecordReaderTest, AfterALongPauseTheFirstReadsAreNotTakenForStuck) {
  const WrittenRecord record = Write("key", 100);
  EXPECT_EQ(ReadNow(record, "key"), ReadOutcome::kOk);
  clock_.Advance(std::chrono::hours(10));
  std::vector<std::unique_ptr<Reading>> readings;
  for (int i = 0; i < 10; ++i) {
    readings.push_back(std::make_unique<Reading>(record.row));
    EXPECT_TRUE(Read(record, "key", readings.back().get())) << i;
  }
  while (engine_.held() > 0) engine_.Complete();
}

TEST_F(RecordReaderTest, ANewReadMayBeginInTheCallback) {
  const WrittenRecord record = Write("key", 100);
  Reading first(record.row);
  Reading second(record.row);
  ASSERT_TRUE(reader_->Read(record.name, "key", record.row, {first.value, first.sums},
                            [&](ReadOutcome) { EXPECT_TRUE(Read(record, "key", &second)); }));
  engine_.Complete();
  engine_.Complete();
  EXPECT_EQ(second.outcome.load(), ReadOutcome::kOk);
}

TEST_F(RecordReaderTest, WhatTheCallbackHoldsIsLetGoWithIt) {
  const WrittenRecord record = Write("key", 100);
  Reading reading(record.row);
  auto held = std::make_shared<int>(1);
  ASSERT_TRUE(reader_->Read(record.name, "key", record.row, {reading.value, reading.sums},
                            [held](ReadOutcome) {}));
  EXPECT_EQ(held.use_count(), 2);
  engine_.Complete();
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(RecordReaderTest, OnceDrainedItReadsNoMore) {
  const WrittenRecord record = Write("key", 100);
  reader_->Drain();
  Reading reading(record.row);
  EXPECT_FALSE(Read(record, "key", &reading));
  reader_->Drain();
}

TEST_F(RecordReaderTest, ItsEndWaitsForReadsUnderWay) {
  const WrittenRecord record = Write("key", 100);
  Reading reading(record.row);
  ASSERT_TRUE(Read(record, "key", &reading));
  StopFlag began;
  StopFlag ended;
  Thread end("reader-end", [&] {
    began.Set();
    reader_.reset();
    ended.Set();
  });
  ASSERT_TRUE(began.WaitFor(kPatience));
  EXPECT_FALSE(ended.WaitFor(std::chrono::milliseconds(20)));
  engine_.Complete();
  EXPECT_TRUE(ended.WaitFor(kPatience));
  EXPECT_EQ(reading.calls.load(), 1);
}

TEST_F(RecordReaderTest, ManyThreadsReadThroughARealEngine) {
  constexpr int kThreads = 4;
  const std::unique_ptr<IoEngine> real = *MakeIoEngine(IoKind::kAuto, 8, nullptr);
  MakeReader(3, real.get());
  std::vector<WrittenRecord> records;
  const std::vector<uint64_t> sizes{8, 5000, 70000, 200000};
  for (size_t i = 0; i < sizes.size(); ++i)
    records.push_back(Write("k" + std::to_string(i), sizes[i]));
  std::atomic<int> good{0};
  std::atomic<int> refused{0};
  std::atomic<int> wrong{0};
  {
    std::vector<Thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("reads-" + std::to_string(t), [&] {
        for (size_t i = 0; i < 100; ++i) {
          const size_t which = i % records.size();
          const std::string key = "k" + std::to_string(which);
          Reading reading(records[which].row);
          if (!Read(records[which], key, &reading)) {
            refused.fetch_add(1);
            continue;
          }
          const bool sound = reading.done.Wait() && reading.outcome.load() == ReadOutcome::kOk &&
                             PutIdOf(key, reading.value) == records[which].row.sequence;
          (sound ? good : wrong).fetch_add(1);
        }
      });
    }
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(good.load(), 0);
  EXPECT_EQ(good.load() + refused.load(), kThreads * 100);
  reader_.reset();
}

}  // namespace
}  // namespace ems::ssd
