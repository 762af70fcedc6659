// Any bytes, as a request and as an answer: an error, or lengths within the limits; never a byte
// read beyond what is there.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "proto/data_plane.h"
#include "proto/kept_page.h"
#include "proto/key_page.h"
#include "proto/word_table.h"

namespace ems::wire {
namespace {

constexpr uint64_t kValueMax = 64 * kMiB;

// Walks a table that ItemTableBytes has measured.
void WalkTable(const FrameHeader& header, ConstBytes body) {
  const uint64_t head_bytes = uint64_t{header.item_count} * sizeof(ItemHead);
  if (body.size() < head_bytes) return;
  const Result<uint64_t> measured = ItemTableBytes(header, body.first(head_bytes), kValueMax);
  if (!measured.ok()) return;
  EMS_CHECK(*measured > head_bytes && *measured <= header.body_bytes);
  EMS_CHECK(*measured <= head_bytes + uint64_t{header.item_count} * kKeyBytesMax);
  EMS_CHECK(header.op != Op::kMultiPut || *measured == CoveredBytes(header));
  if (body.size() < *measured) return;
  uint64_t keys = 0;
  uint64_t items = 0;
  uint64_t values = 0;
  for (ItemReader reader(header, body.first(*measured)); !reader.done(); ++items) {
    const ItemReader::Item item = reader.Next();
    EMS_CHECK(!item.key.empty() && item.key.size() <= kKeyBytesMax);
    EMS_CHECK(item.head.value_bytes <= kValueMax && item.head.slot < kSlotCount);
    keys += item.key.size();
    values += header.op == Op::kMultiPut ? item.head.value_bytes + kTrailerBytes : 0;
    values += header.op == Op::kMultiGetRange ? sizeof(RangeBody) : 0;
    values += header.op == Op::kMultiHasKept ? sizeof(KeptBody) : 0;
    volatile char last = item.key.back();  // it is there
    (void)last;
  }
  EMS_CHECK(items == header.item_count && head_bytes + keys == *measured);
  EMS_CHECK(*measured + values == header.body_bytes);
}

void CheckRequest(ConstBytes bytes) {
  FrameHeader header;
  const Status status = ParseRequest(bytes.first(kHeaderBytes), kValueMax, &header);
  if (!status.ok()) return;
  EMS_CHECK(IsKnown(header.op) && header.slot < kSlotCount);
  EMS_CHECK(header.key_bytes <= kKeyBytesMax);
  EMS_CHECK(IsKeyed(header.op) == (header.key_bytes > 0));
  if (header.op == Op::kPut) {
    EMS_CHECK(header.body_bytes >= kTrailerBytes && header.body_bytes - kTrailerBytes <= kValueMax);
  } else if (header.op == Op::kAttach) {
    EMS_CHECK(header.body_bytes <= kTokenBytesMax);
  } else if (header.op == Op::kScan) {
    EMS_CHECK(header.body_bytes >= sizeof(ScanBody));
    EMS_CHECK(header.body_bytes <= sizeof(ScanBody) + kKeyBytesMax);
  } else if (header.op == Op::kScanKept) {
    EMS_CHECK(header.body_bytes == sizeof(ScanKeptBody));
    EMS_CHECK(CoveredBytes(header) == header.body_bytes);
  } else if (!IsMulti(header.op)) {
    EMS_CHECK(header.body_bytes <= std::max(sizeof(HelloBody), sizeof(StagedValue)));
  } else {
    EMS_CHECK(header.item_count > 0 && header.item_count <= kBatchItemsMax);
    const uint64_t table = uint64_t{header.item_count} * (sizeof(ItemHead) + kKeyBytesMax);
    const uint64_t trailers = uint64_t{header.item_count} * kTrailerBytes;
    const uint64_t staged = uint64_t{header.item_count} * sizeof(StagedValue);
    const uint64_t ranges = uint64_t{header.item_count} * sizeof(RangeBody);
    const uint64_t eras = uint64_t{header.item_count} * sizeof(KeptBody);
    const uint64_t values = header.op == Op::kMultiPut         ? kBatchBytesMax + trailers
                            : header.op == Op::kMultiPutStaged ? staged
                            : header.op == Op::kMultiGetRange  ? ranges
                            : header.op == Op::kMultiHasKept   ? eras
                                                               : 0;
    EMS_CHECK(header.body_bytes <= table + values);
    EMS_CHECK(CoveredBytes(header) <= std::min(header.body_bytes, table + staged + ranges + eras));
    WalkTable(header, bytes.subspan(kHeaderBytes));
  }
}

void CheckAnswer(ConstBytes bytes) {
  const auto raw = ReadRaw<FrameHeader>(bytes);
  FrameHeader header;
  if (!ParseAnswer(bytes.first(kHeaderBytes), raw.op, raw.request_id, &header).ok()) return;
  EMS_CHECK(static_cast<uint16_t>(header.status) <= kWireStatusMax);
  EMS_CHECK(header.body_bytes <= (header.status == WireStatus::kOk
                                      ? kValueBytesLimit + kBatchItemsMax * sizeof(ItemResult)
                                      : kErrorTextMax));
}

// Foreign bytes as the body of an answer to Peers: refused, or as many words as they say.
void CheckWords(ConstBytes body) {
  const Result<WordTable> table = ParseWordTable(body);
  if (!table.ok()) return;
  EMS_CHECK(table->words.size() <= kWordsMax);
  std::vector<std::byte> again;
  AppendTo(*table, &again);
  EMS_CHECK(body.empty() || again.size() == body.size());
  EMS_CHECK(ParseWordTable(again).ok());
}

// The same as the body of an answer to Scan.
void CheckKeys(ConstBytes body) {
  const Result<KeyPage> page = ParseKeyPage(body);
  if (!page.ok()) return;
  for (const ListedKey& one : page->keys)
    EMS_CHECK(!one.key.empty() && one.key.size() <= kKeyBytesMax);
  std::vector<std::byte> again;
  AppendTo(*page, &again);
  EMS_CHECK(again.size() == body.size());
  EMS_CHECK(ParseKeyPage(again).ok());
}

// The same as the body of an answer to ScanKept.
void CheckKept(ConstBytes body) {
  const Result<KeptPage> page = ParseKeptPage(body);
  if (!page.ok()) return;
  std::vector<std::byte> again;
  AppendTo(*page, &again);
  EMS_CHECK(again.size() == body.size());
  EMS_CHECK(ParseKeptPage(again).ok());
}

}  // namespace
}  // namespace ems::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using ems::wire::kHeaderBytes;
  if (size < kHeaderBytes) return 0;
  const ems::ConstBytes bytes = std::as_bytes(std::span(data, size));
  ems::wire::CheckWords(bytes.subspan(kHeaderBytes));
  ems::wire::CheckKeys(bytes.subspan(kHeaderBytes));
  ems::wire::CheckKept(bytes.subspan(kHeaderBytes));
  ems::wire::CheckRequest(bytes);
  ems::wire::CheckAnswer(bytes);
  // The same with a valid seal, so that the checks behind the checksum are reached.
  std::vector<std::byte> sealed(bytes.begin(), bytes.end());
  auto header = ems::wire::ReadRaw<ems::wire::FrameHeader>(sealed);
  header.magic = ems::wire::kMagic;
  header.version = ems::wire::kVersionMax;
  ems::wire::Seal(&header);
  std::memcpy(sealed.data(), &header, sizeof(header));
  ems::wire::CheckRequest(sealed);
  ems::wire::CheckAnswer(sealed);
  return 0;
}
