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
                                                               "MultiGetRange"};

// Bytes in the body for each item of a Multi request, besides head, key and a value that comes
// along.
constexpr uint64_t PerItemBytes(Op op) {
  if (op == Op::kMultiPut) return kTrailerBytes;
  if (op == Op::kMultiGetRange) return sizeof(RangeBody);
  return op == Op::kMultiPutStaged ? sizeof(StagedValue) : 0;
}

uint32_t HeaderChecksum(const FrameHeader& header) {
  return static_cast<uint32_t>(
      Hash64(RawBytes(header).first(offsetof(FrameHeader, header_checksum))));
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
    case Op::kGetRange:
      expected = sizeof(RangeBody);
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
  return OkStatus();
}

}  // namespace

std::string OpName(Op op) {
  return IsKnown(op) ? std::string(kOpNames[static_cast<size_t>(op)])
                     : fmt::format("op {}", static_cast<unsigned>(op));
}

void Seal(FrameHeader* header) { header->header_checksum = HeaderChecksum(*header); }

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
  EMS_CHECK(item < header.item_count);
  const uint64_t from_end = (header.item_count - item) * sizeof(RangeBody);
  return ReadRaw<RangeBody>(body.subspan(body.size() - from_end, sizeof(RangeBody)));
}

Status ToStatus(WireStatus status, std::string_view text) {
  StatusCode code = StatusCode::kInternal;
  switch (status) {
    case WireStatus::kOk:
      return OkStatus();
    case WireStatus::kMiss:
      return Miss();
    case WireStatus::kAlreadyExists:
      code = StatusCode::kAlreadyExists;
      break;
    case WireStatus::kWrongOwner:
    case WireStatus::kStaleNamespace:
    case WireStatus::kVersion:
      code = StatusCode::kFailedPrecondition;
      break;
    case WireStatus::kRetryLater:
    case WireStatus::kQuotaExceeded:
    case WireStatus::kBatchFull:
      code = StatusCode::kResourceExhausted;
      break;
    case WireStatus::kTooLarge:
    case WireStatus::kOutOfRange:
      code = StatusCode::kOutOfRange;
      break;
    case WireStatus::kInvalid:
      code = StatusCode::kInvalidArgument;
      break;
    case WireStatus::kFenced:
      code = StatusCode::kUnavailable;
      break;
    case WireStatus::kChecksumMismatch:
      code = StatusCode::kDataLoss;
      break;
    case WireStatus::kUnimplemented:
      code = StatusCode::kUnimplemented;
      break;
    case WireStatus::kDeadline:
      code = StatusCode::kDeadlineExceeded;
      break;
    case WireStatus::kInternal:
      break;
  }
  return Error(code, text.empty() ? StatusName(status) : text);
}

std::string_view StatusName(WireStatus status) {
  constexpr std::array<std::string_view, kWireStatusMax + 1> kNames = {
      "ok",          "miss",           "already exists",   "wrong owner",  "stale namespace",
      "retry later", "quota exceeded", "too large",        "invalid",      "fenced",
      "checksum",    "unimplemented",  "protocol version", "out of range", "deadline",
      "internal",    "batch full"};
  const auto index = static_cast<size_t>(status);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace ems::wire
