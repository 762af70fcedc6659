#include "mp_server/restart/hand_over_record.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "common/check.h"
#include "common/hash.h"
#include "common/ids.h"
#include "common/object_key.h"
#include "mp_server/memory/size_classes.h"
#include "proto/shm_layout.h"

namespace ems::server {
namespace {

constexpr uint64_t kNoOwner = UINT64_MAX;

Status Damaged(std::string_view what) {
  return Error(StatusCode::kDataLoss, "not a hand-over record: {}", what);
}

template <typename Row>
void Append(const std::vector<Row>& rows, MutableBytes* out) {
  const auto bytes = std::as_bytes(std::span(rows));
  if (!bytes.empty()) std::memcpy(out->data(), bytes.data(), bytes.size());
  *out = out->subspan(bytes.size());
}

// False: there are not so many.
template <typename Row>
bool Take(uint64_t count, ConstBytes* bytes, std::vector<Row>* rows) {
  if (count > bytes->size() / sizeof(Row)) return false;
  rows->resize(count);
  if (count > 0) std::memcpy(rows->data(), bytes->data(), count * sizeof(Row));
  *bytes = bytes->subspan(count * sizeof(Row));
  return true;
}

// Of the record with 0 in the place of the checksum.
uint64_t SumOf(const HandOverHead& head, ConstBytes rows) {
  HandOverHead zero = head;
  zero.checksum = 0;
  return Hash64(rows, Hash64(std::as_bytes(std::span(&zero, 1)), 0x68616e64));
}

uint64_t PagesOf(const SegmentRow& segment) { return segment.bytes / kPageBytes; }

Status CheckSegments(const HandOver& record) {
  std::vector<uint32_t> ids;
  for (const SegmentRow& row : record.segments) {
    if (row.id == 0 || row.bytes == 0 || row.bytes % kPageBytes != 0 || row.page_kind > 2)
      return Damaged("a segment");
    ids.push_back(row.id);
  }
  std::sort(ids.begin(), ids.end());
  const bool twice = std::adjacent_find(ids.begin(), ids.end()) != ids.end();
  return twice ? Damaged("a segment twice") : OkStatus();
}

bool IsRun(const RunRow& row, const std::vector<SegmentRow>& segments) {
  if (row.segment >= segments.size()) return false;
  const uint64_t pages = PagesOf(segments[row.segment]);
  if (row.pages == 0 || row.first_page >= pages || row.pages > pages - row.first_page) return false;
  if (row.size_class == kRunClass) return row.chunks == 0;
  if (row.size_class >= SizeClasses::Get().count() || row.chunks == 0) return false;
  const auto size_class = static_cast<uint8_t>(row.size_class);
  return row.chunks <= SizeClasses::ChunksIn(SizeClasses::Get().at(size_class), row.pages);
}

bool Follows(const RunRow& row, const RunRow& before) {
  if (row.segment != before.segment) return row.segment > before.segment;
  return row.first_page >= before.first_page + before.pages;
}

bool IsObject(const ObjectRow& row, const RunRow& run) {
  if (row.key_bytes == 0 || row.key_bytes > kKeyBytesMax || row.slot >= kSlotCount) return false;
  const uint64_t begin = uint64_t{run.first_page} * kPageBytes;
  const uint64_t at = uint64_t{row.offset_units} * shm::kOffsetUnit;
  if (at < begin || at - begin > run.pages * kPageBytes - kObjectHeaderBytes) return false;
  if (row.value_bytes > run.pages * kPageBytes) return false;
  const Footprint footprint = SizeClasses::Get().For(row.value_bytes, row.key_bytes);
  if (footprint.size_class != run.size_class) return false;
  return !footprint.is_run() || (footprint.pages == run.pages && at == begin);
}

Status CheckRows(const HandOver& record) {
  std::vector<uint64_t> owner_of(record.segments.size(), kNoOwner);
  uint64_t run = 0, object = 0;
  for (uint64_t i = 0; i < record.namespaces.size(); ++i) {
    const NamespaceRow& ns = record.namespaces[i];
    if (ns.id == 0 || (i > 0 && ns.id <= record.namespaces[i - 1].id))
      return Damaged("a namespace");
    if (ns.runs > record.runs.size() - run || ns.objects > record.objects.size() - object)
      return Damaged("more rows than there are");
    const uint64_t first_run = run;
    for (const uint64_t end = run + ns.runs; run < end; ++run) {
      const RunRow& row = record.runs[run];
      if (!IsRun(row, record.segments)) return Damaged("a run");
      if (run > first_run && !Follows(row, record.runs[run - 1]))
        return Damaged("runs in disorder");
      uint64_t& owner = owner_of[row.segment];
      if (owner != kNoOwner && owner != i) return Damaged("a segment of two namespaces");
      owner = i;
    }
    for (const uint64_t end = object + ns.objects; object < end; ++object) {
      const ObjectRow& row = record.objects[object];
      if (row.run < first_run || row.run >= run || !IsObject(row, record.runs[row.run]) ||
          row.generation > ns.newest_generation)
        return Damaged("an object");
    }
  }
  const bool all = run == record.runs.size() && object == record.objects.size() &&
                   std::find(owner_of.begin(), owner_of.end(), kNoOwner) == owner_of.end();
  return all ? OkStatus() : Damaged("rows of nobody");
}

}  // namespace

uint64_t HandOver::size_bytes() const {
  return sizeof(HandOverHead) + segments.size() * sizeof(SegmentRow) +
         namespaces.size() * sizeof(NamespaceRow) + runs.size() * sizeof(RunRow) +
         objects.size() * sizeof(ObjectRow);
}

void HandOver::Encode(MutableBytes out) {
  EMS_CHECK(out.size() == size_bytes(), "{} bytes for a record of {}", out.size(), size_bytes());
  head.segments = segments.size();
  head.namespaces = namespaces.size();
  head.runs = runs.size();
  head.objects = objects.size();
  const MutableBytes rows = out.subspan(sizeof(head));
  MutableBytes rest = rows;
  Append(segments, &rest);
  Append(namespaces, &rest);
  Append(runs, &rest);
  Append(objects, &rest);
  head.checksum = SumOf(head, rows);
  std::memcpy(out.data(), &head, sizeof(head));
}

Result<HandOver> HandOver::Decode(ConstBytes bytes) {
  HandOver record;
  HandOverHead& head = record.head;
  if (bytes.size() < sizeof(head)) return Damaged("too short");
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kHandOverMagic) return Damaged("other bytes");
  if (head.format != kHandOverFormat || head.layout != LayoutFingerprint())
    return Error(StatusCode::kFailedPrecondition, "version differs: it lays objects out otherwise");
  const ConstBytes all = bytes.subspan(sizeof(head));
  ConstBytes rest = all;
  if (!Take(head.segments, &rest, &record.segments) ||
      !Take(head.namespaces, &rest, &record.namespaces) || !Take(head.runs, &rest, &record.runs) ||
      !Take(head.objects, &rest, &record.objects))
    return Damaged("fewer rows than it says");
  if (head.checksum != SumOf(head, all.first(all.size() - rest.size())))
    return Damaged("checksum differs");
  EMS_RETURN_IF_ERROR(CheckSegments(record));
  EMS_RETURN_IF_ERROR(CheckRows(record));
  return record;
}

uint64_t LayoutFingerprint() {
  std::vector<uint64_t> facts = {
      kHandOverFormat,     sizeof(HandOverHead), sizeof(ObjectRow), shm::kObjectHeaderVersion,
      shm::kLayoutVersion, kPageBytes,           kPackedKeyRoom,    kPagedHeadBytes,
      kDirectIoBytes};
  const SizeClasses& classes = SizeClasses::Get();
  for (uint8_t i = 0; i < classes.count(); ++i) {
    const SizeClass& one = classes.at(i);
    facts.insert(facts.end(), {one.value_bytes, one.chunk_bytes, uint64_t{one.paged}});
  }
  return Hash64(std::as_bytes(std::span(facts)), 0x6c61796f);
}

}  // namespace ems::server
