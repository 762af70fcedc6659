// Any bytes, as what a damaged or foreign disk may hold: record heads, region headers, the record
// of a view, and whole indexes with their regions at a start. What counts afterwards is what it
// claims to be and lies where it can; everything else is a miss, and no number is used twice.
#include <rocksdb/env.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/object_key.h"
#include "mp_server/ssd/disk/stored_record.h"
#include "mp_server/ssd/recovery.h"
#include "mp_server/ssd/slot_grant.h"
#include "tests/fuzz/fuzz_input.h"

namespace ems::ssd {
namespace {

using testing::FuzzInput;

constexpr uint64_t kStoreId = 0x5eed;
constexpr uint64_t kRegionBytes = 256 * kKiB;
constexpr uint32_t kRegions = 3;
constexpr size_t kRowsMax = 8;
constexpr uint64_t kRecordValueMax = 4 * kMiB;

// ---- A record's head.

ExpectedRecord TakeExpected(FuzzInput* input) {
  ExpectedRecord expected;
  expected.store_id = kStoreId;
  expected.region_sequence = input->Take<uint8_t>();
  expected.name = {{NamespaceId(input->Take<uint8_t>()), input->Take<uint8_t>()},
                   {input->Take<uint8_t>(), input->Take<uint8_t>()}};
  expected.sequence = input->Take<uint8_t>();
  expected.value_bytes = input->Take<uint32_t>() % (kRecordValueMax + 1);
  expected.value_checksum = input->Take<uint8_t>();
  expected.key_bytes = 1u + input->Take<uint8_t>();
  return expected;
}

void CheckGoodHead(ConstBytes head, const Head& found, const ExpectedRecord& expected) {
  EMS_CHECK(found.key.size() == expected.key_bytes);
  EMS_CHECK(found.piece_sums.empty() ||
            found.piece_sums.size() == PieceCount(expected.value_bytes) * sizeof(uint64_t));
  const auto inside = [&](const void* at, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(at);
    return begin >= head.data() + sizeof(RecordHeader) &&
           begin + bytes <= head.data() + head.size();
  };
  EMS_CHECK(inside(found.key.data(), found.key.size()));
  EMS_CHECK(found.piece_sums.empty() || inside(found.piece_sums.data(), found.piece_sums.size()));
}

void RunHead(FuzzInput* input) {
  const ExpectedRecord expected = TakeExpected(input);
  const RecordShape shape(expected.value_bytes, expected.key_bytes);
  EMS_CHECK(shape.payload_offset() + expected.value_bytes <= shape.record_bytes());
  const auto flip = input->Take<uint16_t>();
  const ConstBytes raw = input->TakeRest();
  const Head foreign = CheckHead(raw, expected);
  if (foreign.verdict == HeadVerdict::kGood) CheckGoodHead(raw, foreign, expected);

  // As it is written; piece checksums and key are from the input.
  std::vector<std::byte> tail(shape.table_bytes + shape.key_bytes);
  std::copy_n(raw.begin(), std::min(raw.size(), tail.size()), tail.begin());
  std::vector<uint64_t> sums(shape.table_bytes / sizeof(uint64_t));
  if (!sums.empty()) std::memcpy(sums.data(), tail.data(), shape.table_bytes);
  const std::string_view key = AsText(std::span(tail).subspan(shape.table_bytes));
  RecordHeader header;
  header.store_id = expected.store_id;
  header.region_sequence = expected.region_sequence;
  header.namespace_id = expected.name.ns.id.value();
  header.namespace_generation = expected.name.ns.generation;
  header.key_hash_lo = expected.name.hash.lo;
  header.key_hash_hi = expected.name.hash.hi;
  header.sequence = expected.sequence;
  header.value_bytes = expected.value_bytes;
  header.value_checksum = expected.value_checksum;
  std::vector<std::byte> head(shape.head_bytes());
  WriteHead(header, sums, key, head);
  const Head mine = CheckHead(head, expected);
  EMS_CHECK(mine.verdict == HeadVerdict::kGood && mine.key == key);
  EMS_CHECK(std::ranges::equal(mine.piece_sums, std::as_bytes(std::span(sums))));
  CheckGoodHead(head, mine, expected);
  EMS_CHECK(CheckHead(std::span(head).first(head.size() - 1), expected).verdict !=
            HeadVerdict::kGood);
  // One bit of it is another one.
  head[flip / 8 % head.size()] ^= std::byte{1} << (flip % 8);
  const uint64_t at = flip / 8 % head.size();
  const bool is_slot = at >= offsetof(RecordHeader, slot) && at < offsetof(RecordHeader, store_id);
  const HeadVerdict spoilt = CheckHead(head, expected).verdict;
  EMS_CHECK(spoilt != HeadVerdict::kGood);
  if (is_slot || at >= sizeof(RecordHeader)) EMS_CHECK(spoilt == HeadVerdict::kDamaged);
}

// ---- A region's header.

void RunRegionHeader(FuzzInput* input) {
  auto wanted = input->Take<RegionHeader>();
  RegionHeader read;
  const ConstBytes raw = std::as_bytes(std::span(&wanted, 1));
  if (ReadRegionHeader(raw, &read)) EMS_CHECK(std::memcmp(&read, &wanted, sizeof(read)) == 0);
  EMS_CHECK(!ReadRegionHeader(raw.first(raw.size() - 1), &read));
  wanted.magic = kRegionMagic;
  wanted.version = kFormatVersion;
  std::vector<std::byte> block(kBlockBytes, std::byte{0xee});
  WriteRegionHeader(wanted, block);
  EMS_CHECK(ReadRegionHeader(block, &read) == (wanted.sequence <= kSequenceMax));
  wanted.checksum = read.checksum;
  EMS_CHECK(std::memcmp(&read, &wanted, sizeof(read)) == 0);
  const auto flip = input->Take<uint16_t>();
  block[flip / 8 % sizeof(RegionHeader)] ^= std::byte{1} << (flip % 8);
  EMS_CHECK(!ReadRegionHeader(block, &read));
}

// ---- The record of a view.

void RunGrant(FuzzInput* input) {
  SlotGrant grant;
  grant.view = ViewVersion::FromPacked(input->Take<uint64_t>());
  grant.history = input->Take<uint8_t>() % 3;
  grant.shown = input->Take<uint8_t>() % 2 == 0;
  const uint64_t back = input->Take<uint8_t>() % 4;
  const uint64_t since = grant.view.epoch() - std::min(back, grant.view.epoch());
  if (grant.history != 0) grant.since.assign(kSlotCount, since);
  const auto slot = static_cast<uint16_t>(input->TakeUpTo(kSlotCount - 1));
  grant.owned.set(slot);
  const auto before = GrantRecord::FromText(std::string(AsText(input->TakeRest())));
  if (!before.ok()) {
    EMS_CHECK(before.status().code() == StatusCode::kDataLoss);
    return;
  }
  const auto again = GrantRecord::FromText(before->ToText());
  EMS_CHECK(again.ok() && *again == *before);
  if (grant.Keeps(*before, slot)) {
    EMS_CHECK(before->view != ViewVersion() && before->view <= grant.view);
    EMS_CHECK(before->view.epoch() <= grant.view.epoch());
    // Without a common history no view is left out.
    EMS_CHECK((grant.history != 0 && grant.history == before->history) ||
              grant.view.epoch() <= before->view.epoch() + 1);
  }
  const uint16_t foreign = (slot + 1) % kSlotCount;
  EMS_CHECK(!grant.Keeps(*before, foreign));
  const GrantRecord record = grant.Record(before->lineage);
  EMS_CHECK(record.view == ViewVersion() || grant.Keeps(record, slot));
}

// ---- A start.

// The folder and the index that all inputs share: each overwrites what the one before has left.
// Threading: one thread.
class Disk final {
 public:
  Disk() : env_(rocksdb::NewMemEnv(rocksdb::Env::Default())) {
    EMS_CHECK(::mkdtemp(folder_.data()) != nullptr);
    RegionIndex::Options options;
    options.folder = folder_ + "/index";
    options.env = env_.get();
    auto rows = RegionIndex::Open(options);
    EMS_CHECK(rows.ok(), "{}", Message(rows.status()));
    rows_ = *std::move(rows);
    std::filesystem::create_directory(RegionFolder());
    for (uint32_t id = 0; id < kRegions; ++id) {
      bool direct = false;
      const std::string path = fmt::format("{}/{:08}.region", RegionFolder(), id);
      auto file = files_.Open(path, true, &direct);
      EMS_CHECK(file.ok() && ::ftruncate(file->get(), kRegionBytes) == 0);
      region_files_.push_back(*std::move(file));
    }
  }
  ~Disk() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  void SetHeader(uint32_t region, ConstBytes block) {
    EMS_CHECK(files_.Write(region_files_[region].get(), block, 0).ok());
  }
  Result<std::unique_ptr<RegionLog>> OpenLog() {
    return RegionLog::Open({.folder = RegionFolder(),
                            .region_bytes = kRegionBytes,
                            .regions_max = kRegions,
                            .store_id = kStoreId,
                            .files = &files_});
  }
  RegionIndex* rows() { return rows_.get(); }

 private:
  std::string RegionFolder() const { return folder_ + "/regions"; }

  std::string folder_ = "/dev/shm/ems-fuzz-XXXXXX";
  const std::unique_ptr<rocksdb::Env> env_;
  RegionFiles files_;
  std::unique_ptr<RegionIndex> rows_;
  std::vector<fabric::Fd> region_files_;
};

// Numbers that are near each other, so that rows and regions meet.
uint64_t TakeSequence(FuzzInput* input) {
  const auto byte = input->Take<uint8_t>();
  return byte < 0xf0 ? byte % 4 : byte < 0xf8 ? UINT64_MAX - byte % 8 : kSequenceMax - byte % 8 + 4;
}

NamespaceRef TakeNamespace(FuzzInput* input) {
  const auto byte = input->Take<uint8_t>();
  return {NamespaceId(byte % 2), byte / 2 % 2u};
}

std::map<uint32_t, RegionHeader> TakeRegions(FuzzInput* input, Disk* disk) {
  std::map<uint32_t, RegionHeader> headers;
  for (uint32_t id = 0; id < kRegions; ++id) {
    RegionHeader header;
    const auto how = input->Take<uint8_t>();
    header.store_id = how % 16 == 1 ? kStoreId + 1 : kStoreId;
    header.region = how % 16 == 2 ? id + 1 : id;
    header.sequence = TakeSequence(input);
    const NamespaceRef ns = TakeNamespace(input);
    header.namespace_id = ns.id.value();
    header.namespace_generation = ns.generation;
    std::array<std::byte, kBlockBytes> block;
    WriteRegionHeader(header, block);
    if (how % 16 == 3) block[how / 16] ^= std::byte{1};
    disk->SetHeader(id, block);
    const bool sound = how % 16 == 0 || how % 16 > 3;
    if (sound && header.sequence <= kSequenceMax) headers[id] = header;
  }
  return headers;
}

std::map<ObjectName, Row> TakeRows(FuzzInput* input) {
  std::map<ObjectName, Row> rows;
  for (size_t i = 0; i < kRowsMax && !input->empty(); ++i) {
    const ObjectName name{TakeNamespace(input), {i, i}};
    Row row;
    row.sequence = TakeSequence(input);
    row.region_sequence = TakeSequence(input);
    row.region = static_cast<uint32_t>(input->TakeUpTo(kRegions));
    row.offset_units = input->Take<uint32_t>();
    row.value_bytes = input->Take<uint64_t>();
    row.key_bytes = input->Take<uint32_t>();
    // Most have sizes that fit.
    const auto how = input->Take<uint8_t>();
    if (how % 8 != 0) row.offset_units %= kRegionBytes / kPackUnit;
    if (how % 8 > 1) row.value_bytes %= kRegionBytes;
    if (how % 8 > 2) row.key_bytes %= 512;
    rows[name] = row;
  }
  return rows;
}

// Whether a record of this row can lie in its region, in numbers that do not wrap.
bool Fits(const Row& row) {
  using Wide = unsigned __int128;
  const Wide begin = Wide{row.offset_units} * kPackUnit;
  if (row.value_bytes > kRegionBytes) return false;
  const RecordShape shape(row.value_bytes, row.key_bytes);
  if (shape.aligned && begin % kBlockBytes != 0) return false;
  return begin >= kBlockBytes && begin + shape.record_bytes() <= kRegionBytes;
}

void RunRecovery(FuzzInput* input) {
  static Disk disk;
  std::map<uint32_t, RegionHeader> headers = TakeRegions(input, &disk);
  std::map<ObjectName, Row> rows = TakeRows(input);
  RowBatch batch;
  for (const auto& [name, row] : rows) batch.Put(name, row);
  EMS_CHECK(disk.rows()->Write(batch, false).ok());

  auto log = disk.OpenLog();
  EMS_CHECK(log.ok(), "{}", Message(log.status()));
  SsdIndex index;
  const auto recovered = Recover(disk.rows(), log->get(), &index);
  EMS_CHECK(recovered.ok() && recovered->unreadable_rows == 0);
  EMS_CHECK(recovered->objects + recovered->stale_rows == rows.size());
  EMS_CHECK(index.objects() == recovered->objects);
  for (const auto& [id, header] : headers) EMS_CHECK((*log)->next_sequence() > header.sequence);
  for (const auto& [name, row] : rows) {
    const bool counted = row.sequence <= kSequenceMax && row.region_sequence <= kSequenceMax;
    EMS_CHECK(!counted || (recovered->next_sequence > row.sequence &&
                           (*log)->next_sequence() > row.region_sequence));
    const SsdIndex::Found found = index.Find(name, false);
    EMS_CHECK(!found.pending);
    if (!found.stored) continue;
    EMS_CHECK(SameRecord(found.row, row) && Fits(row));
    EMS_CHECK(counted && headers.contains(row.region));
    const RegionHeader& header = headers[row.region];
    EMS_CHECK(header.sequence == row.region_sequence);
    EMS_CHECK(header.namespace_id == name.ns.id.value() &&
              header.namespace_generation == name.ns.generation);
  }
  size_t members = 0;
  for (const auto& region : (*log)->regions()) {
    EMS_CHECK((region->state == RegionState::kFree) == region->members.empty());
    members += region->members.size();
  }
  EMS_CHECK(members == recovered->objects);

  // A second start finds the same, and nothing that is stale; then all goes, for the next input.
  SsdIndex second;
  auto second_log = disk.OpenLog();
  EMS_CHECK(second_log.ok());
  const auto again = Recover(disk.rows(), second_log->get(), &second);
  EMS_CHECK(again.ok() && again->stale_rows == 0 && again->objects == recovered->objects);
  batch.Clear();
  for (const auto& [name, row] : rows) batch.Delete(name);
  EMS_CHECK(disk.rows()->Write(batch, false).ok());
}

}  // namespace
}  // namespace ems::ssd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ems::testing::FuzzInput input(data, size);
  switch (input.Take<uint8_t>() % 4) {
    case 0:
      ems::ssd::RunHead(&input);
      break;
    case 1:
      ems::ssd::RunRegionHeader(&input);
      break;
    case 2:
      ems::ssd::RunGrant(&input);
      break;
    default:
      ems::ssd::RunRecovery(&input);
  }
  return 0;
}
