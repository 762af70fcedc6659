#pragma once
// The data plane's frames: one fixed little-endian header of 64 bytes, then key, then body.
//
//   request   header · key (key_bytes) · body (body_bytes)
//   answer    header · body (body_bytes); request_id and op are the request's
//
// Bodies, by op (request → answer):
//   Hello           HelloBody → HelloBody: the versions that both sides may speak
//   Ping            – → –: the header carries the server's view
//   Peers           – → WordTableHead · PeerWord × count, or nothing; the header carries the view
//                   that the server has, or none (word_table.h)
//   View            – → v1::View, or nothing: the view that the server has, if that is newer than
//                   the header's; of one server to another
//   Stats           – → JSON text
//   Scan            ScanBody · prefix → ScanHead · KeyHead × count · keys (key_page.h)
//   Put             value · trailer → –
//   Get             – → value; header.checksum is the value's
//   GetRange        RangeBody → bytes; header.checksum is that of the bytes, whose checksum is cut
//                   at the value's 64 KiB piece boundaries (common/checksum.h), header.whole_bytes
//                   the length of the whole value
//   Exists          – → –; header.object_bytes is the value's length
//   Remove          – → –
//   MultiExists     ItemHead × n · keys → ItemResult × n
//   MultiRemove     ItemHead × n · keys → ItemResult × n
//   MultiGet        ItemHead × n · keys → ItemResult × n · values of the items with status OK
//   MultiPut        ItemHead × n · keys · (value · trailer) × n, in order → ItemResult × n
//   GetKept         KeptBody → KeptHead · value, if it says so: of one server to another, for what
//                   that one has kept of a slot that it has lost
//   MultiHasKept    ItemHead × n · keys · KeptBody × n → ItemResult × n: the same without values;
//                   of a miss that is kUntouched, whole_bytes is the node and checksum the epoch
//   ScanKept        ScanKeptBody → KeptPageHead · ScanHead · KeyHead × count · keys (kept_page.h):
//                   which keys are kept of a slot, in all namespaces
//   Attach          token, if any → –; on a Unix socket. With status OK the connection speaks
//                   shm::SessionMessage from then on (shm_layout.h)
//   PutStaged       StagedValue → –; the value lies in memory that the session has registered
//   MultiPutStaged  ItemHead × n · keys · StagedValue × n → ItemResult × n
//   MultiGetRange   ItemHead × n · keys · RangeBody × n → ItemResult × n · bytes of the items with
//                   status OK, each checksummed as those of a GetRange
// An answer with another status than OK carries its text, if any, as body.
//
// Every byte is covered by a 64-bit checksum (the header by 32 bits of one), so that a bit that
// flips on the way is seen before anything is looked up, changed or believed:
//   the header       header_checksum
//   a request        header.checksum: XXH3-64 of the key and then all of the body that is no value
//                    and no trailer. A request that does not match it is answered with
//                    kChecksumMismatch: nothing has been done, and the connection goes on
//   a value          a trailer behind it, so that a sender hashes while it sends; in answers
//                    header.checksum, or of a Multi answer ItemResult::checksum
//   an answer        header.checksum: XXH3-64 of all of the body that is no value; of an answer
//                    to Get and GetRange with status OK that of the value, of one to Exists with
//                    status OK the field is object_bytes. An answer that does not match ends the
//                    connection
// The checksum of a value is folded with the request that it belongs to (FoldChecksum): with
// namespace, key, range and item. A value that arrives in place of another one does not match.
//
// A change that arrives after its caller has stopped waiting for it could undo a newer one. So a
// request says until when it is wanted, by the server's clock (kFlagUntil), which each answer
// tells: answer_clock less the time at which it came is at most what the server's clock is ahead.
//
// Bound: every length is checked against the limits below before anything is allocated.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/ids.h"
#include "common/object_key.h"

namespace ems::wire {

inline constexpr uint32_t kMagic = 0x31534d45;  // "EMS1" as it lies in memory
inline constexpr uint8_t kVersionMin = 3;
inline constexpr uint8_t kVersionMax = 3;

inline constexpr uint64_t kValueBytesLimit = uint64_t{1}
                                             << 30;  // what the format allows; servers set less
static_assert(kValueBytesLimit <= UINT32_MAX);       // FrameHeader::whole_bytes
inline constexpr uint32_t kBatchItemsMax = 16384;
inline constexpr uint64_t kBatchBytesMax = 256 * kMiB;  // values of one MultiPut or MultiGet frame
inline constexpr uint64_t kTrailerBytes = sizeof(uint64_t);
inline constexpr uint64_t kErrorTextMax = 1024;
inline constexpr uint64_t kStatsBytesMax = kMiB;
inline constexpr uint64_t kTokenBytesMax = 256;
inline constexpr uint32_t kScanItemsMax = 1024;  // that one Scan may ask for
inline constexpr uint64_t kScanAnswerBytesMax = kMiB;
inline constexpr uint64_t kViewBytesMax = 4 * kMiB;

enum class Op : uint8_t {
  kHello = 1,
  kPing = 2,
  kStats = 3,
  kPut = 4,
  kGet = 5,
  kGetRange = 6,
  kExists = 7,
  kRemove = 8,
  kMultiPut = 9,
  kMultiGet = 10,
  kMultiExists = 11,
  kMultiRemove = 12,
  kAttach = 13,
  kPutStaged = 14,
  kMultiPutStaged = 15,
  kMultiGetRange = 16,
  kPeers = 17,
  kScan = 18,
  kGetKept = 19,
  kMultiHasKept = 20,
  kScanKept = 21,
  kView = 22,
};
inline constexpr uint8_t kOpMax = 22;
// "Get", or "op 77".
std::string OpName(Op op);
constexpr bool IsKnown(Op op) { return op >= Op::kHello && static_cast<uint8_t>(op) <= kOpMax; }
constexpr bool IsKeyed(Op op) {
  return (op >= Op::kPut && op <= Op::kRemove) || op == Op::kPutStaged || op == Op::kGetKept;
}
constexpr bool IsMulti(Op op) {
  return (op >= Op::kMultiPut && op <= Op::kMultiRemove) || op == Op::kMultiPutStaged ||
         op == Op::kMultiGetRange || op == Op::kMultiHasKept;
}
constexpr bool IsRead(Op op) {
  return op == Op::kGet || op == Op::kGetRange || op == Op::kExists || op == Op::kMultiGet ||
         op == Op::kMultiExists || op == Op::kMultiGetRange || op == Op::kScan;
}

// Request flags. Those that a server does not know it passes over.
inline constexpr uint16_t kFlagOverwrite = 1 << 0;   // Put, MultiPut
inline constexpr uint16_t kFlagDurableSsd = 1 << 1;  // Put, MultiPut: acknowledge from SSD
inline constexpr uint16_t kFlagNoTouch = 1 << 2;     // Get, Exists: leave the LRU order alone
// Get, GetRange, their Multi forms: what came before did not match its checksum. Values in memory
// are compared with theirs before they are sent; what is damaged goes, and is read from the SSD if
// that has it, or else a miss.
inline constexpr uint16_t kFlagCheck = 1 << 3;
// deadline_ms is a moment of the server's clock (ClockMs), from which on nothing is changed for
// this request: kDeadline. Without it, how long the sender will wait.
inline constexpr uint16_t kFlagUntil = 1 << 4;
// In a namespace with replicas. Of reads: a copy will do, so a server that holds copies of the slot
// answers from them; what it has none of is kCopyMiss, which says nothing of the owner. Put,
// MultiPut, Remove, MultiRemove, of one server to another: it is that one's copy that is stored or
// goes. A value that has not been used for so long (ItemHead::idle_ms) that it would be the next to
// be evicted there is not taken: kQuotaExceeded.
inline constexpr uint16_t kFlagCopy = 1 << 5;

// MultiPut with kFlagCopy, in an immutable namespace: the object is hot, and its copy is to be kept
// for a while wherever its slot is. What the server does not take is kQuotaExceeded or kWrongOwner.
// Reads of it have kFlagCopy.
inline constexpr uint16_t kFlagHot = 1 << 6;

// The status of an answer. Values are part of the wire format.
enum class WireStatus : uint16_t {
  kOk = 0,
  kMiss = 1,
  kAlreadyExists = 2,
  kWrongOwner = 3,      // header.view is the server's; refresh to it or newer and ask the owner
  kStaleNamespace = 4,  // unknown id or old generation
  // No room just now, or draining: nothing was done, header.retry_ms says when to ask again.
  kRetryLater = 5,
  kQuotaExceeded = 6,
  kTooLarge = 7,
  kInvalid = 8,
  kFenced = 9,  // the server's lease has ended: no Put or Remove, and no read of what may change
  // The request came damaged, and nothing was done; or what it asks to read is damaged here.
  kChecksumMismatch = 10,
  kUnimplemented = 11,  // op or durability
  kVersion = 12,        // protocol version; the body names the range
  kOutOfRange = 13,     // GetRange beyond the value's end
  kDeadline = 14,
  kInternal = 15,
  kBatchFull = 16,  // MultiGet, MultiGetRange: this and later items did not fit; ask again
  // Put, Remove: done in memory, and the SSD tier has not taken it in time. Carried out once more
  // it could undo what others have done since.
  kNotDurable = 17,
  // Of a read with kFlagCopy by a server that holds copies of the slot: not of this key. The owner
  // may have it.
  kCopyMiss = 18,
};
inline constexpr uint16_t kWireStatusMax = 18;

struct FrameHeader {
  uint32_t magic = kMagic;
  uint8_t version = kVersionMax;
  Op op = Op::kPing;
  // Of a request; of an answer to Get and GetRange: CopyHint (copy_hint.h), otherwise zero.
  uint16_t flags = 0;
  uint32_t request_id = 0;
  union {
    uint32_t deadline_ms = 0;  // request: how long the sender will wait, or until when; 0: not told
    uint32_t retry_ms;         // answer: with kRetryLater or kNotDurable, how long to wait
  };
  uint32_t namespace_id = 0;
  union {
    uint32_t namespace_generation = 0;  // request
    uint32_t answer_clock;  // answer: the server's ClockMs when it was made; 0: not told
  };
  uint64_t view = 0;  // ViewVersion::packed() of the sender
  uint16_t slot = 0;  // keyed requests; chosen by the client from its route key
  uint16_t key_bytes = 0;
  WireStatus status = WireStatus::kOk;
  uint16_t item_count = 0;  // Multi ops
  uint64_t body_bytes = 0;  // after the key, trailers included
  union {
    uint64_t checksum = 0;  // as told above
    uint64_t object_bytes;  // answer to Exists, with status OK: length of the value
  };
  union {
    uint32_t whole_bytes = 0;  // answers to GetRange; otherwise zero
    uint32_t table_bytes;      // MultiPut requests: of heads and keys, which the checksum covers
  };
  uint32_t header_checksum = 0;  // low half of XXH3-64 over the 60 bytes before

  SlotId slot_id() const { return SlotId(slot); }
  NamespaceRef ns() const { return {NamespaceId(namespace_id), namespace_generation}; }
  ViewVersion view_version() const { return ViewVersion::FromPacked(view); }
};
static_assert(sizeof(FrameHeader) == 64);
static_assert(offsetof(FrameHeader, request_id) == 8 && offsetof(FrameHeader, namespace_id) == 16);
static_assert(offsetof(FrameHeader, view) == 24 && offsetof(FrameHeader, slot) == 32);
static_assert(offsetof(FrameHeader, body_bytes) == 40 && offsetof(FrameHeader, checksum) == 48);
static_assert(offsetof(FrameHeader, header_checksum) == 60);

// Milliseconds of this machine's clock, modulo 2^32: 49 days.
constexpr uint32_t ClockMs(TimePoint now) {
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count());
}
// How long the sender of a request that is here at `now` waits still; zero: not at all, or it does
// not say.
Duration TimeLeft(const FrameHeader& request, TimePoint now);
// From when on nothing may be changed for it; TimePoint::max(): it does not say.
TimePoint WantedUntil(const FrameHeader& request, TimePoint now);

struct HelloBody {
  uint8_t version_min = kVersionMin;
  uint8_t version_max = kVersionMax;
  // Low 48 bits of the server's cluster, little-endian; 0 from a client, and where it is not known.
  std::array<uint8_t, 6> cluster{};
  uint64_t boot_id = 0;          // of the server; 0 from a client
  uint64_t value_bytes_max = 0;  // largest value the server takes; 0 from a client

  void SetCluster(ClusterId id);
  // Of the cluster that it names, those 48 bits.
  uint64_t cluster_bits() const;
  // It names a cluster that is not `id`. False when either is not known.
  bool IsStrangerTo(ClusterId id) const;
};
static_assert(sizeof(HelloBody) == 24);

// Answers to Peers: the view that the words which follow are about.
struct WordTableHead {
  uint64_t view = 0;         // ViewVersion::packed()
  uint64_t fingerprint = 0;  // of all that this view says
  uint32_t count = 0;        // of words
  uint32_t reserved = 0;
};
static_assert(sizeof(WordTableHead) == 24);

// A server of that view said that it has it, so long before this answer was made, or a little
// later.
struct PeerWord {
  uint64_t boot_id = 0;
  uint32_t node_id = 0;
  uint32_t age_us = 0;
};
static_assert(sizeof(PeerWord) == 16);
inline constexpr uint32_t kWordsMax = 16384;
inline constexpr uint64_t kWordTableBytesMax =
    sizeof(WordTableHead) + uint64_t{kWordsMax} * sizeof(PeerWord);

// A place in a server's walk over its keys, which it alone can read; all zero: the beginning.
using ScanCursor = std::array<uint64_t, 3>;
inline constexpr ScanCursor kScanBegin = {};

// What a Scan asks for: keys of a namespace that begin with the prefix behind this.
struct ScanBody {
  ScanCursor cursor = kScanBegin;
  uint32_t items_max = kScanItemsMax;  // 1 to kScanItemsMax; the answer may have a few more
  uint32_t bytes_max = kScanAnswerBytesMax / 2;  // of keys, likewise
};
static_assert(sizeof(ScanBody) == 32);

struct RangeBody {
  uint64_t offset = 0;
  uint64_t length = 0;
};
static_assert(sizeof(RangeBody) == 16);

// For which era of the key's slot (mp_server/store/moved_slots.h) a GetKept or an item of a
// MultiHasKept asks.
struct KeptBody {
  uint64_t history = 0;  // as SlotHistory's
  uint64_t since = 0;    // epoch of the view by which the slot got the owner that asks, or its next
};
static_assert(sizeof(KeptBody) == 16);

// What a ScanKept asks for: keys of the header's slot, of whatever namespace, that are kept for an
// era.
struct ScanKeptBody {
  KeptBody era;
  ScanCursor cursor = kScanBegin;
  uint32_t items_max = kScanItemsMax;            // as ScanBody's
  uint32_t bytes_max = kScanAnswerBytesMax / 2;  // likewise
};
static_assert(sizeof(ScanKeptBody) == 48);

enum class KeptState : uint8_t {
  kGone = 0,   // nothing is kept that could be true still
  kValue = 1,  // it follows, and was true at the beginning of that era
  // The key was not changed here in the time before; what `node` keeps for the era since `since` is
  // still true.
  kUntouched = 2,
};

struct KeptHead {
  KeptState state = KeptState::kGone;
  std::array<uint8_t, 3> reserved{};
  uint32_t node = 0;
  uint64_t since = 0;
  uint64_t checksum = 0;  // of the value, folded with the request
};
static_assert(sizeof(KeptHead) == 24);

// The place of a staged Put's value.
struct StagedValue {
  uint64_t session = 0;  // as in the session's Welcome
  uint64_t secret = 0;
  uint64_t offset = 0;  // in the registered memory
  uint64_t bytes = 0;   // MultiPutStaged: the same as in the ItemHead
  // Where in the registered memory a word says how many of the bytes are there by now, growing to
  // all of them while the server copies; kAllThere: no such word, they are.
  uint64_t progress_at = UINT64_MAX;
};
inline constexpr uint64_t kAllThere = UINT64_MAX;
static_assert(sizeof(StagedValue) == 40);

struct ItemHead {
  uint16_t slot = 0;
  uint16_t key_bytes = 0;
  uint32_t idle_ms = 0;      // MultiPut with kFlagCopy; otherwise 0
  uint64_t value_bytes = 0;  // MultiPut, MultiPutStaged; otherwise 0
};
static_assert(sizeof(ItemHead) == 16);

// The tier in which an object was found. Part of the wire format.
enum class ItemTier : uint8_t {
  kUnknown = 0,  // the op does not say
  kDram = 1,     // also when it is on the SSD as well
  kSsd = 2,      // on the SSD alone; of MultiGet and MultiGetRange: read from it for this request
};

struct ItemResult {
  WireStatus status = WireStatus::kOk;
  ItemTier tier = ItemTier::kUnknown;  // MultiExists, MultiGet, MultiGetRange, with status OK
  uint8_t copies = 0;        // MultiGet, MultiGetRange, with status OK: CopyHint (copy_hint.h)
  uint32_t whole_bytes = 0;  // MultiGetRange: length of the whole value; otherwise zero
  // MultiGet, MultiGetRange: bytes that follow; MultiExists: length of the value
  uint64_t value_bytes = 0;
  uint64_t checksum = 0;  // MultiGet, MultiGetRange
};
static_assert(sizeof(ItemResult) == 24);

inline constexpr uint64_t kHeaderBytes = sizeof(FrameHeader);

// Sets header_checksum; call last.
void Seal(FrameHeader* header);
// Completes the header of a request. `covered`: its key, and behind it all of its body that is no
// value and no trailer. Cost: one pass over them.
void SealRequest(ConstBytes covered, FrameHeader* header);
// How many bytes of a request's body its checksum covers: all of them up to the first value.
uint64_t CoveredBytes(const FrameHeader& request);
// Whether key and covered bytes of the body are those that the sender sealed.
bool RequestMatches(const FrameHeader& request, std::string_view key, ConstBytes covered);

// The checksum of a value as it is on the wire, from the value's own, and the other way round.
// `request` is the sealed header of the request that brings the value or asks for it, `item` its
// place among the items. Cost: a few cycles, for the request's checksum stands for its keys.
uint64_t FoldChecksum(uint64_t checksum, const FrameHeader& request, uint32_t item = 0);
// Folds the checksums of the items with status OK in `results`, the answer to a MultiGet or
// MultiGetRange; of any other answer leaves them alone.
void FoldResults(const FrameHeader& request, MutableBytes results);
// Completes the header of an answer. `covered`: all of its body that is no value. With status OK
// `answer->checksum` of a Get or GetRange is, on entry, the value's own, and object_bytes of an
// Exists its length.
void SealAnswer(const FrameHeader& request, ConstBytes covered, FrameHeader* answer);
// Whether these bytes of an answer's body, all that are no value, are those that the sender sealed.
// True for an answer that has none of them.
bool AnswerMatches(const FrameHeader& answer, ConstBytes covered);

// Reads a request's header from its 64 bytes and checks everything that needs no context: magic,
// checksum, version and that the lengths fit the op and the limits. `value_bytes_max` is the
// largest value the server takes. Errors:
//   kDataLoss            not an EMS frame, or damaged: nothing in it can be trusted, the connection
//   must end kFailedPrecondition  another protocol version   } `header` is filled: an answer can be
//   kInvalidArgument     lengths against the rules  } addressed, then the connection must end
//   kOutOfRange          value too large            }
//   kUnimplemented       unknown op: `header` is filled; skip key and body, answer, go on
Status ParseRequest(ConstBytes bytes, uint64_t value_bytes_max, FrameHeader* header);
// The same for an answer to a request of `op` and `request_id`. Errors: kDataLoss, always the end
// of the connection.
Status ParseAnswer(ConstBytes bytes, Op op, uint32_t request_id, FrameHeader* header);

// Bytes of heads and keys of a Multi request, from its heads alone (header.item_count ×
// sizeof(ItemHead) bytes). Errors: kInvalidArgument  a key length out of bounds, values where none
// belong, or lengths that do not add up to
//   header.body_bytes and header.table_bytes · kOutOfRange  a value above value_bytes_max
Result<uint64_t> ItemTableBytes(const FrameHeader& header, ConstBytes heads,
                                uint64_t value_bytes_max);

// Walks the items of a table that ItemTableBytes has measured: heads, then keys. Borrows the bytes.
class ItemReader final {
 public:
  struct Item {
    ItemHead head;
    std::string_view key;
  };
  ItemReader(const FrameHeader& header, ConstBytes table)
      : table_(table), count_(header.item_count), key_at_(count_ * sizeof(ItemHead)) {}
  bool done() const { return next_ == count_; }
  Item Next();

 private:
  ConstBytes table_;
  uint64_t count_;
  uint64_t next_ = 0;
  uint64_t key_at_;
};

// The range of an item of a MultiGetRange, the era of one of a MultiHasKept, the staged value of
// one of a MultiPutStaged, whose lengths ItemTableBytes has checked; `body` is the whole body.
RangeBody RangeOf(const FrameHeader& header, ConstBytes body, uint32_t item);
KeptBody KeptOf(const FrameHeader& header, ConstBytes body, uint32_t item);
StagedValue StagedOf(const FrameHeader& header, ConstBytes body, uint32_t item);

// How an answer looks to the SDK's caller. kMiss has no text.
Status ToStatus(WireStatus status, std::string_view text);
// "wrong owner", for logs and metrics labels. The view points to static memory.
std::string_view StatusName(WireStatus status);

template <typename T>
ConstBytes RawBytes(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
T ReadRaw(ConstBytes bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace ems::wire
