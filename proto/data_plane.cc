#include "proto/data_plane.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "common/hash.h"

namespace ems::wire {
namespace {

static_assert(std::endian::native == std::endian::little,
              "frames are copied as they lie; a big-endian port swaps here");

constexpr std::array<std::string_view, kOpMax + 1> kOpNames = {"",
                                                               "Hello",
                                                               "Ping",
                                                               "Stats",
                                                               "Put",
                                                               "Get",
                                                               "GetRange",
                                                               "Exists",
                                                               "Remove",
                                                               "MultiPut",
                                                               "MultiGet",
                                                               "MultiExists",
                                                               "MultiRemove",
                                                               "Attach",
                                                               "PutStaged",
                                                               "MultiPutStaged",
                                                               "MultiGetRange",
                                                               "Peers",
                                                               "Scan",
                                                               "GetKept",
                                                               "MultiHasKept",
                                                               "ScanKept",
                                                               "View"};

struct StatusMeaning {
  std::string_view name;
  StatusCode code;
};
// By WireStatus.
constexpr std::array<StatusMeaning, kWireStatusMax + 1> kStatuses = {{
    {"ok", StatusCode::kOk},
    {"miss", StatusCode::kNotFound},
    {"already exists", StatusCode::kAlreadyExists},
    {"wrong owner", StatusCode::kFailedPrecondition},
    {"stale namespace", StatusCode::kFailedPrecondition},
    {"retry later", StatusCode::kResourceExhausted},
    {"quota exceeded", StatusCode::kResourceExhausted},
    {"too large", StatusCode::kOutOfRange},
    {"invalid", StatusCode::kInvalidArgument},
    {"fenced", StatusCode::kUnavailable},
    {"checksum", StatusCode::kDataLoss},
    {"unimplemented", StatusCode::kUnimplemented},
    {"protocol version", StatusCode::kFailedPrecondition},
    {"out of range", StatusCode::kOutOfRange},
    {"deadline", StatusCode::kDeadlineExceeded},
    {"internal", StatusCode::kInternal},
    {"batch full", StatusCode::kResourceExhausted},
    {"not durable", StatusCode::kAborted},
    {"copy miss", StatusCode::kUnavailable},
}};

// Bytes in the body for each item of a Multi request, besides head, key and a value that comes
// along.
constexpr uint64_t PerItemBytes(Op op) {
  if (op == Op::kMultiPut) return kTrailerBytes;
  if (op == Op::kMultiGetRange) return sizeof(RangeBody);
  if (op == Op::kMultiHasKept) return sizeof(KeptBody);
  return op == Op::kMultiPutStaged ? sizeof(StagedValue) : 0;
}

uint32_t HeaderChecksum(const FrameHeader& header) {
  return static_cast<uint32_t>(
      Hash64(RawBytes(header).first(offsetof(FrameHeader, header_checksum))));
}

// Answers with status OK whose checksum is that of the value that is their body.
constexpr bool IsOneValue(Op op) { return op == Op::kGet || op == Op::kGetRange; }

// Heads, keys and trailers of a MultiPut as they can be for its number of items.
bool MayBeTable(const FrameHeader& header) {
  const uint64_t count = header.item_count;
  return header.table_bytes >= count * (sizeof(ItemHead) + 1) &&
         header.table_bytes <= count * (sizeof(ItemHead) + kKeyBytesMax) &&
         header.table_bytes + count * kTrailerBytes <= header.body_bytes;
}

// What `item` has in the array with an entry an item that is the end of the body.
template <typename T>
T FromEnd(const FrameHeader& header, ConstBytes body, uint32_t item) {
  EMS_CHECK(item < header.item_count);
  const uint64_t from_end = (header.item_count - item) * sizeof(T);
  return ReadRaw<T>(body.subspan(body.size() - from_end, sizeof(T)));
}

// SplitMix64's finalizer: each bit of the input changes each bit of the result, or not, at random.
constexpr uint64_t Mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

Status CheckMagicAndChecksum(ConstBytes bytes, FrameHeader* header) {
  EMS_CHECK(bytes.size() == kHeaderBytes);
  *header = ReadRaw<FrameHeader>(bytes);
  if (header->magic != kMagic) {
    return Error(StatusCode::kDataLoss, "not an EMS frame: it starts with {:#010x}", header->magic);
  }
  if (header->header_checksum != HeaderChecksum(*header)) {
    return Error(StatusCode::kDataLoss, "frame header checksum does not match");
  }
  return OkStatus();
}

Status Malformed(const FrameHeader& header, std::string_view what, uint64_t found) {
  return Error(StatusCode::kInvalidArgument, "{} frame: {} {}", OpName(header.op), what, found);
}

Status TooLarge(uint64_t value_bytes, uint64_t value_bytes_max) {
  return Error(StatusCode::kOutOfRange, "value of {} bytes: this server takes {} at most",
               value_bytes, value_bytes_max);
}

// What body a request of one key, or of none, must have.
Status CheckSingleBody(const FrameHeader& header, uint64_t value_bytes_max) {
  uint64_t expected = 0;
  switch (header.op) {
    case Op::kPut:
      if (header.body_bytes < kTrailerBytes)
        return Malformed(header, "body bytes", header.body_bytes);
      if (header.body_bytes - kTrailerBytes > value_bytes_max) {
        return TooLarge(header.body_bytes - kTrailerBytes, value_bytes_max);
      }
      return OkStatus();
    case Op::kAttach:
      expected = std::min(header.body_bytes, kTokenBytesMax);
      break;
    case Op::kHello:
      expected = sizeof(HelloBody);
      break;
    case Op::kScan:
      expected = std::clamp<uint64_t>(header.body_bytes, sizeof(ScanBody),
                                      sizeof(ScanBody) + kKeyBytesMax);
      break;
    case Op::kGetRange:
      expected = sizeof(RangeBody);
      break;
    case Op::kGetKept:
      expected = sizeof(KeptBody);
      break;
    case Op::kScanKept:
      expected = sizeof(ScanKeptBody);
      break;
    case Op::kPutStaged:
      expected = sizeof(StagedValue);
      break;
    default:
      break;
  }
  if (header.body_bytes != expected) return Malformed(header, "body bytes", header.body_bytes);
  return OkStatus();
}

Status CheckMultiBody(const FrameHeader& header, uint64_t value_bytes_max) {
  const uint64_t count = header.item_count;
  if (count == 0 || count > kBatchItemsMax) return Malformed(header, "item count", count);
  uint64_t most = count * (sizeof(ItemHead) + kKeyBytesMax + PerItemBytes(header.op));
  if (header.op == Op::kMultiPut) most += std::max(kBatchBytesMax, value_bytes_max);
  if (header.body_bytes < count * (sizeof(ItemHead) + 1) || header.body_bytes > most) {
    return Malformed(header, "body bytes", header.body_bytes);
  }
  if (header.op == Op::kMultiPut && !MayBeTable(header)) {
    return Malformed(header, "table bytes", header.table_bytes);
  }
  return OkStatus();
}

}  // namespace

std::string OpName(Op op) {
  return IsKnown(op) ? std::string(kOpNames[static_cast<size_t>(op)])
                     : fmt::format("op {}", static_cast<unsigned>(op));
}

void HelloBody::SetCluster(ClusterId id) {
  for (size_t i = 0; i < cluster.size(); ++i)
    cluster[i] = static_cast<uint8_t>(id.value() >> (8 * i));
}

uint64_t HelloBody::cluster_bits() const {
  uint64_t bits = 0;
  for (size_t i = 0; i < cluster.size(); ++i) bits |= uint64_t{cluster[i]} << (8 * i);
  return bits;
}

bool HelloBody::IsStrangerTo(ClusterId id) const {
  HelloBody mine;
  mine.SetCluster(id);
  return AreStrangers(ClusterId(cluster_bits()), ClusterId(mine.cluster_bits()));
}

void Seal(FrameHeader* header) { header->header_checksum = HeaderChecksum(*header); }

void SealRequest(ConstBytes covered, FrameHeader* header) {
  header->checksum = Hash64(covered);
  if (header->op == Op::kMultiPut) header->table_bytes = static_cast<uint32_t>(covered.size());
  Seal(header);
}

uint64_t CoveredBytes(const FrameHeader& request) {
  if (request.op == Op::kPut) return 0;
  return request.op == Op::kMultiPut ? request.table_bytes : request.body_bytes;
}

Duration TimeLeft(const FrameHeader& request, TimePoint now) {
  using std::chrono::milliseconds;
  if ((request.flags & kFlagUntil) == 0) return milliseconds(request.deadline_ms);
  // What has passed is the half of all moments behind the clock.
  const auto left = static_cast<int32_t>(request.deadline_ms - ClockMs(now));
  return std::max<Duration>(milliseconds(left), Duration::zero());
}

TimePoint WantedUntil(const FrameHeader& request, TimePoint now) {
  if ((request.flags & kFlagUntil) == 0) return TimePoint::max();
  // TimeLeft counts from the last whole millisecond.
  return std::chrono::floor<std::chrono::milliseconds>(now) + TimeLeft(request, now);
}

bool RequestMatches(const FrameHeader& request, std::string_view key, ConstBytes covered) {
  if (key.empty()) return Hash64(covered) == request.checksum;
  if (covered.empty()) return Hash64(AsBytes(key)) == request.checksum;
  // Both: a range or the place of a staged value.
  std::array<std::byte, kKeyBytesMax + std::max(sizeof(RangeBody), sizeof(StagedValue))> both;
  EMS_CHECK(key.size() + covered.size() <= both.size(), "{} + {} bytes", key.size(),
            covered.size());
  std::ranges::copy(AsBytes(key), both.begin());
  std::ranges::copy(covered, both.begin() + static_cast<ptrdiff_t>(key.size()));
  return Hash64(std::span(both).first(key.size() + covered.size())) == request.checksum;
}

uint64_t FoldChecksum(uint64_t checksum, const FrameHeader& request, uint32_t item) {
  const uint64_t ns = uint64_t{request.namespace_id} << 32 | request.namespace_generation;
  return checksum ^ Mix(Mix(request.checksum + item) ^ ns);
}

void FoldResults(const FrameHeader& request, MutableBytes results) {
  if (request.op != Op::kMultiGet && request.op != Op::kMultiGetRange) return;
  uint32_t item = 0;
  for (; results.size() >= sizeof(ItemResult); results = results.subspan(sizeof(ItemResult))) {
    auto result = ReadRaw<ItemResult>(results);
    if (result.status == WireStatus::kOk) {
      result.checksum = FoldChecksum(result.checksum, request, item);
      std::memcpy(results.data(), &result, sizeof(result));
    }
    ++item;
  }
}

void SealAnswer(const FrameHeader& request, ConstBytes covered, FrameHeader* answer) {
  const bool ok = answer->status == WireStatus::kOk;
  if (ok && IsOneValue(answer->op)) {
    answer->checksum = FoldChecksum(answer->checksum, request);
  } else if (!ok || answer->op != Op::kExists) {
    answer->checksum = Hash64(covered);
  }
  Seal(answer);
}

bool AnswerMatches(const FrameHeader& answer, ConstBytes covered) {
  const bool ok = answer.status == WireStatus::kOk;
  if (ok && (IsOneValue(answer.op) || answer.op == Op::kExists)) return true;
  return Hash64(covered) == answer.checksum;
}

Status ParseRequest(ConstBytes bytes, uint64_t value_bytes_max, FrameHeader* header) {
  EMS_RETURN_IF_ERROR(CheckMagicAndChecksum(bytes, header));
  if (header->version < kVersionMin || header->version > kVersionMax) {
    return Error(StatusCode::kFailedPrecondition,
                 "protocol version {}: this server speaks {} to {}", header->version, kVersionMin,
                 kVersionMax);
  }
  if (!IsKnown(header->op)) {
    if (header->body_bytes > kBatchBytesMax)
      return Malformed(*header, "body bytes", header->body_bytes);
    return Error(StatusCode::kUnimplemented, "{} is not known here", OpName(header->op));
  }
  const bool keyed = IsKeyed(header->op);
  if (keyed ? header->key_bytes == 0 || header->key_bytes > kKeyBytesMax : header->key_bytes != 0) {
    return Malformed(*header, "key bytes", header->key_bytes);
  }
  if (header->slot >= kSlotCount) return Malformed(*header, "slot", header->slot);
  if (!IsMulti(header->op)) {
    if (header->item_count != 0) return Malformed(*header, "item count", header->item_count);
    return CheckSingleBody(*header, value_bytes_max);
  }
  return CheckMultiBody(*header, value_bytes_max);
}

Status ParseAnswer(ConstBytes bytes, Op op, uint32_t request_id, FrameHeader* header) {
  EMS_RETURN_IF_ERROR(CheckMagicAndChecksum(bytes, header));
  if (header->version < kVersionMin || header->version > kVersionMax) {
    return Error(StatusCode::kFailedPrecondition,
                 "server speaks wire {}, this build reads {} to {}", header->version, kVersionMin,
                 kVersionMax);
  }
  if (header->op != op || header->request_id != request_id) {
    return Error(StatusCode::kDataLoss, "answer to {} {} where {} {} was asked", OpName(header->op),
                 header->request_id, OpName(op), request_id);
  }
  if (static_cast<uint16_t>(header->status) > kWireStatusMax) {
    return Error(StatusCode::kDataLoss, "answer with unknown status {}",
                 static_cast<unsigned>(header->status));
  }
  if (header->key_bytes != 0) {
    return Error(StatusCode::kDataLoss, "answer with a key of {} bytes", header->key_bytes);
  }
  uint64_t most = kErrorTextMax;
  if (header->status == WireStatus::kOk) {
    most = op == Op::kStats ? kStatsBytesMax : kValueBytesLimit;
    if (op == Op::kPeers) most = kWordTableBytesMax;
    if (op == Op::kView) most = kViewBytesMax;
    if (op == Op::kScan || op == Op::kScanKept) most = kScanAnswerBytesMax;
    if (IsMulti(op)) most = kBatchItemsMax * sizeof(ItemResult) + kValueBytesLimit;
  }
  if (header->body_bytes > most) {
    return Error(StatusCode::kDataLoss, "answer of {} bytes to {}", header->body_bytes, OpName(op));
  }
  return OkStatus();
}

Result<uint64_t> ItemTableBytes(const FrameHeader& header, ConstBytes heads,
                                uint64_t value_bytes_max) {
  EMS_CHECK(heads.size() == header.item_count * sizeof(ItemHead));
  uint64_t table = heads.size();
  uint64_t values = 0;
  uint64_t staged = 0;
  for (size_t at = 0; at < heads.size(); at += sizeof(ItemHead)) {
    const auto head = ReadRaw<ItemHead>(heads.subspan(at, sizeof(ItemHead)));
    if (head.key_bytes == 0 || head.key_bytes > kKeyBytesMax) {
      return Malformed(header, "item with key bytes", head.key_bytes);
    }
    if (head.slot >= kSlotCount) return Malformed(header, "item with slot", head.slot);
    const bool brings = header.op == Op::kMultiPut;
    if (!brings && header.op != Op::kMultiPutStaged && head.value_bytes != 0) {
      return Malformed(header, "item with value bytes", head.value_bytes);
    }
    if (head.value_bytes > value_bytes_max) return TooLarge(head.value_bytes, value_bytes_max);
    table += head.key_bytes;
    if (header.op == Op::kMultiPutStaged) staged += head.value_bytes;
    values += PerItemBytes(header.op) + (brings ? head.value_bytes : 0);
  }
  if (staged > std::max(kBatchBytesMax, value_bytes_max)) {
    return Error(StatusCode::kOutOfRange, "staged values of {} bytes in one frame: {} at most",
                 staged, std::max(kBatchBytesMax, value_bytes_max));
  }
  if (header.op == Op::kMultiPut && table != header.table_bytes) {
    return Malformed(header, fmt::format("heads and keys of {} bytes in a table of", table),
                     header.table_bytes);
  }
  if (table + values != header.body_bytes) {
    return Malformed(header, fmt::format("items of {} bytes in a body of", table + values),
                     header.body_bytes);
  }
  return table;
}

ItemReader::Item ItemReader::Next() {
  EMS_CHECK(next_ < count_);
  Item item;
  item.head = ReadRaw<ItemHead>(table_.subspan(next_ * sizeof(ItemHead), sizeof(ItemHead)));
  item.key = AsText(table_.subspan(key_at_, item.head.key_bytes));
  key_at_ += item.head.key_bytes;
  ++next_;
  return item;
}

RangeBody RangeOf(const FrameHeader& header, ConstBytes body, uint32_t item) {
  return FromEnd<RangeBody>(header, body, item);
}

KeptBody KeptOf(const FrameHeader& header, ConstBytes body, uint32_t item) {
  return FromEnd<KeptBody>(header, body, item);
}

StagedValue StagedOf(const FrameHeader& header, ConstBytes body, uint32_t item) {
  return FromEnd<StagedValue>(header, body, item);
}

Status ToStatus(WireStatus status, std::string_view text) {
  if (status == WireStatus::kOk) return OkStatus();
  if (status == WireStatus::kMiss) return Miss();
  const auto index = static_cast<size_t>(status);
  const StatusCode code = index < kStatuses.size() ? kStatuses[index].code : StatusCode::kInternal;
  return Error(code, text.empty() ? StatusName(status) : text);
}

std::string_view StatusName(WireStatus status) {
  const auto index = static_cast<size_t>(status);
  return index < kStatuses.size() ? kStatuses[index].name : "unknown";
}

}  // namespace ems::wire
