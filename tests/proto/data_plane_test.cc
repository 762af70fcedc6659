// What must hold: a frame means the same on both sides, every damage is seen, and no length is
// believed before it is checked.
#include "proto/data_plane.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

namespace ems::wire {
namespace {

constexpr uint64_t kValueMax = 64 * kMiB;

FrameHeader Request(Op op, uint16_t key_bytes, uint64_t body_bytes) {
  FrameHeader header;
  header.op = op;
  header.request_id = 7;
  header.namespace_id = 3;
  header.namespace_generation = 2;
  header.view = ViewVersion(5, 9).packed();
  header.slot = kSlotCount - 1;
  header.key_bytes = key_bytes;
  header.body_bytes = body_bytes;
  return header;
}

StatusCode Parse(FrameHeader header, uint64_t value_bytes_max = kValueMax) {
  Seal(&header);
  FrameHeader out;
  return ParseRequest(RawBytes(header), value_bytes_max, &out).code();
}

TEST(FrameHeaderTest, LayoutIsTheWireFormat) {
  EXPECT_EQ(offsetof(FrameHeader, magic), 0U);
  EXPECT_EQ(offsetof(FrameHeader, version), 4U);
  EXPECT_EQ(offsetof(FrameHeader, op), 5U);
  EXPECT_EQ(offsetof(FrameHeader, flags), 6U);
  EXPECT_EQ(offsetof(FrameHeader, request_id), 8U);
  EXPECT_EQ(offsetof(FrameHeader, deadline_ms), 12U);
  EXPECT_EQ(offsetof(FrameHeader, retry_ms), 12U);
  EXPECT_EQ(offsetof(FrameHeader, namespace_id), 16U);
  EXPECT_EQ(offsetof(FrameHeader, namespace_generation), 20U);
  EXPECT_EQ(offsetof(FrameHeader, view), 24U);
  EXPECT_EQ(offsetof(FrameHeader, slot), 32U);
  EXPECT_EQ(offsetof(FrameHeader, key_bytes), 34U);
  EXPECT_EQ(offsetof(FrameHeader, status), 36U);
  EXPECT_EQ(offsetof(FrameHeader, item_count), 38U);
  EXPECT_EQ(offsetof(FrameHeader, body_bytes), 40U);
  EXPECT_EQ(offsetof(FrameHeader, checksum), 48U);
  EXPECT_EQ(offsetof(FrameHeader, object_bytes), 48U);
  EXPECT_EQ(offsetof(FrameHeader, whole_bytes), 56U);
  EXPECT_EQ(offsetof(FrameHeader, table_bytes), 56U);
  EXPECT_EQ(offsetof(FrameHeader, header_checksum), 60U);
  EXPECT_EQ(AsText(RawBytes(kMagic)), "EMS1");
}

// The bytes of one header, so that a change of format cannot slip in.
TEST(FrameHeaderTest, ASealedPingHasTheseBytes) {
  FrameHeader header;
  header.request_id = 0x01020304;
  Seal(&header);
  const std::string hex = ToHex(RawBytes(header));
  EXPECT_EQ(hex.substr(0, 32), "454d5331030200000403020100000000");
  EXPECT_EQ(hex.substr(32, 88), std::string(88, '0'));
  const auto low = static_cast<uint32_t>(Hash64(RawBytes(header).first(60)));
  EXPECT_EQ(header.header_checksum, low);
}

TEST(ParseRequestTest, GivesBackWhatWasSealed) {
  FrameHeader header = Request(Op::kPut, 12, 1000 + kTrailerBytes);
  header.flags = kFlagOverwrite | kFlagDurableSsd;
  header.deadline_ms = 250;
  Seal(&header);
  FrameHeader out;
  ASSERT_TRUE(ParseRequest(RawBytes(header), kValueMax, &out).ok());
  EXPECT_EQ(std::memcmp(&header, &out, sizeof(header)), 0);
  EXPECT_EQ(out.view_version(), ViewVersion(5, 9));
  EXPECT_EQ(out.ns(), (NamespaceRef{NamespaceId(3), 2}));
  EXPECT_EQ(out.slot_id(), SlotId(kSlotCount - 1));
}

TEST(ParseRequestTest, EachFlippedBitIsDamage) {
  FrameHeader header = Request(Op::kPut, 12, 1000 + kTrailerBytes);
  Seal(&header);
  for (size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    std::array<std::byte, kHeaderBytes> bytes;
    std::memcpy(bytes.data(), &header, sizeof(header));
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    FrameHeader out;
    EXPECT_EQ(ParseRequest(bytes, kValueMax, &out).code(), StatusCode::kDataLoss) << "bit " << bit;
    EXPECT_EQ(ParseAnswer(bytes, Op::kPut, 7, &out).code(), StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(ParseRequestTest, AnotherMagicIsNoFrameEvenWhenSealed) {
  FrameHeader header = Request(Op::kGet, 1, 0);
  header.magic ^= 1;
  EXPECT_EQ(Parse(header), StatusCode::kDataLoss);
}

TEST(ParseRequestTest, AnotherVersionFillsTheHeader) {
  for (const int version : {0, 1, 2, 4, 255}) {
    FrameHeader header = Request(Op::kGet, 1, 0);
    header.version = static_cast<uint8_t>(version);
    Seal(&header);
    FrameHeader out;
    EXPECT_EQ(ParseRequest(RawBytes(header), kValueMax, &out).code(),
              StatusCode::kFailedPrecondition);
    EXPECT_EQ(out.request_id, 7U);
    EXPECT_EQ(out.op, Op::kGet);
  }
}

TEST(ParseRequestTest, UnknownOpsAreUnimplementedWithTheirLengths) {
  for (const int op : {0, kOpMax + 1, 77, 255}) {
    FrameHeader header = Request(static_cast<Op>(op), 5, 100);
    Seal(&header);
    FrameHeader out;
    EXPECT_EQ(ParseRequest(RawBytes(header), kValueMax, &out).code(), StatusCode::kUnimplemented);
    EXPECT_EQ(out.key_bytes, 5U);
    EXPECT_EQ(out.body_bytes, 100U);
  }
}

TEST(ParseRequestTest, AStagedPutBringsItsPlaceAndNothingElse) {
  EXPECT_EQ(Parse(Request(Op::kPutStaged, 5, sizeof(StagedValue))), StatusCode::kOk);
  EXPECT_EQ(Parse(Request(Op::kPutStaged, 5, sizeof(StagedValue) + 8)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Parse(Request(Op::kPutStaged, 0, sizeof(StagedValue))), StatusCode::kInvalidArgument);
}

TEST(ParseRequestTest, AnAttachMayBringAToken) {
  EXPECT_EQ(Parse(Request(Op::kAttach, 0, 0)), StatusCode::kOk);
  EXPECT_EQ(Parse(Request(Op::kAttach, 0, kTokenBytesMax)), StatusCode::kOk);
  EXPECT_EQ(Parse(Request(Op::kAttach, 0, kTokenBytesMax + 1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(Parse(Request(Op::kAttach, 1, 0)), StatusCode::kInvalidArgument);
}

TEST(ParseRequestTest, AnUnknownOpsLengthsAreBoundedToo) {
  FrameHeader header = Request(static_cast<Op>(77), 5, uint64_t{1} << 63);
  EXPECT_NE(Parse(header), StatusCode::kOk);
  EXPECT_NE(Parse(header), StatusCode::kUnimplemented) << "nobody can skip 2^63 bytes";
}

struct Lengths {
  Op op;
  uint16_t key;
  uint64_t body;
  StatusCode want;
};

TEST(ParseRequestTest, LengthsMustFitTheOp) {
  const StatusCode ok = StatusCode::kOk, bad = StatusCode::kInvalidArgument;
  const std::vector<Lengths> cases = {
      {Op::kHello, 0, sizeof(HelloBody), ok},
      {Op::kHello, 0, 0, bad},
      {Op::kHello, 1, sizeof(HelloBody), bad},
      {Op::kPing, 0, 0, ok},
      {Op::kPing, 0, 1, bad},
      {Op::kPing, 1, 0, bad},
      {Op::kPeers, 0, 0, ok},
      {Op::kPeers, 0, 1, bad},
      {Op::kPeers, 1, 0, bad},
      {Op::kView, 0, 0, ok},
      {Op::kView, 0, 1, bad},
      {Op::kView, 1, 0, bad},
      {Op::kGetKept, 1, sizeof(KeptBody), ok},
      {Op::kGetKept, 0, sizeof(KeptBody), bad},
      {Op::kGetKept, 1, sizeof(KeptBody) + 1, bad},
      {Op::kScan, 0, sizeof(ScanBody), ok},
      {Op::kScan, 0, sizeof(ScanBody) + 512, ok},
      {Op::kScan, 0, sizeof(ScanBody) - 1, bad},
      {Op::kScan, 0, sizeof(ScanBody) + 513, bad},
      {Op::kScan, 1, sizeof(ScanBody), bad},
      {Op::kStats, 0, 0, ok},
      {Op::kStats, 0, 8, bad},
      {Op::kPut, 1, kTrailerBytes, ok},
      {Op::kPut, 512, kTrailerBytes + 1, ok},
      {Op::kPut, 0, kTrailerBytes, bad},
      {Op::kPut, 513, kTrailerBytes, bad},
      {Op::kPut, 1, kTrailerBytes - 1, bad},
      {Op::kPut, 1, 0, bad},
      {Op::kGet, 1, 0, ok},
      {Op::kGet, 0, 0, bad},
      {Op::kGet, 1, 1, bad},
      {Op::kGet, 513, 0, bad},
      {Op::kGet, 65535, 0, bad},
      {Op::kGetRange, 1, sizeof(RangeBody), ok},
      {Op::kGetRange, 1, sizeof(RangeBody) - 1, bad},
      {Op::kExists, 1, 0, ok},
      {Op::kExists, 1, 1, bad},
      {Op::kRemove, 1, 0, ok},
      {Op::kRemove, 0, 0, bad},
  };
  for (const Lengths& c : cases) {
    EXPECT_EQ(Parse(Request(c.op, c.key, c.body)), c.want)
        << OpName(c.op) << " key " << c.key << " body " << c.body;
  }
}

TEST(ParseRequestTest, ValueLimitIsExact) {
  EXPECT_EQ(Parse(Request(Op::kPut, 1, kValueMax + kTrailerBytes)), StatusCode::kOk);
  EXPECT_EQ(Parse(Request(Op::kPut, 1, kValueMax + 1 + kTrailerBytes)), StatusCode::kOutOfRange);
  for (const uint64_t huge : {uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 63,
                              std::numeric_limits<uint64_t>::max(),
                              std::numeric_limits<uint64_t>::max() - kTrailerBytes}) {
    EXPECT_EQ(Parse(Request(Op::kPut, 1, huge)), StatusCode::kOutOfRange) << huge;
    EXPECT_NE(Parse(Request(Op::kGet, 1, huge)), StatusCode::kOk) << huge;
    EXPECT_NE(Parse(Request(Op::kHello, 0, huge)), StatusCode::kOk) << huge;
  }
}

TEST(ParseRequestTest, TooLargeStillFillsTheHeader) {
  FrameHeader header = Request(Op::kPut, 4, 100 + kTrailerBytes);
  Seal(&header);
  FrameHeader out;
  EXPECT_EQ(ParseRequest(RawBytes(header), 99, &out).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(out.request_id, 7U);
}

TEST(ParseRequestTest, SlotsEndAtTheirCount) {
  FrameHeader header = Request(Op::kGet, 1, 0);
  header.slot = kSlotCount;
  EXPECT_EQ(Parse(header), StatusCode::kInvalidArgument);
  header.slot = 65535;
  EXPECT_EQ(Parse(header), StatusCode::kInvalidArgument);
}

TEST(ParseRequestTest, MultiOpsNeedItemsAndNoKey) {
  FrameHeader header = Request(Op::kMultiGet, 0, sizeof(ItemHead) + 1);
  header.slot = 0;
  header.item_count = 1;
  EXPECT_EQ(Parse(header), StatusCode::kOk);
  header.item_count = 0;
  EXPECT_EQ(Parse(header), StatusCode::kInvalidArgument);
  header.item_count = kBatchItemsMax;
  header.body_bytes = kBatchItemsMax * (sizeof(ItemHead) + 1);
  EXPECT_EQ(Parse(header), StatusCode::kOk);
  header.item_count = kBatchItemsMax + 1;
  header.body_bytes += sizeof(ItemHead) + 1;
  EXPECT_EQ(Parse(header), StatusCode::kInvalidArgument);
  header.item_count = 65535;
  EXPECT_EQ(Parse(header), StatusCode::kInvalidArgument);
  header.item_count = 1;
  header.body_bytes = sizeof(ItemHead) + 1;
  header.key_bytes = 1;
  EXPECT_EQ(Parse(header), StatusCode::kInvalidArgument);
  header.key_bytes = 0;
  header.body_bytes = sizeof(ItemHead) - 1;
  EXPECT_EQ(Parse(header), StatusCode::kInvalidArgument) << "heads alone do not fit";
}

TEST(ParseRequestTest, MultiBodiesAreBounded) {
  FrameHeader header = Request(Op::kMultiPut, 0, uint64_t{1} << 40);
  header.item_count = 1;
  EXPECT_NE(Parse(header), StatusCode::kOk);
  header.op = Op::kMultiGet;
  header.body_bytes = sizeof(ItemHead) + kKeyBytesMax + 1;
  EXPECT_NE(Parse(header), StatusCode::kOk) << "one item cannot have so long a key";
}

TEST(ParseAnswerTest, MustAnswerThisRequest) {
  FrameHeader header = Request(Op::kGet, 0, 100);
  header.slot = 0;
  Seal(&header);
  FrameHeader out;
  EXPECT_TRUE(ParseAnswer(RawBytes(header), Op::kGet, 7, &out).ok());
  EXPECT_EQ(ParseAnswer(RawBytes(header), Op::kGet, 8, &out).code(), StatusCode::kDataLoss);
  EXPECT_EQ(ParseAnswer(RawBytes(header), Op::kExists, 7, &out).code(), StatusCode::kDataLoss);
}

TEST(ParseAnswerTest, UnknownStatusAndEndlessBodiesAreDamage) {
  FrameHeader header;
  header.op = Op::kGet;
  header.request_id = 7;
  header.status = static_cast<WireStatus>(kWireStatusMax + 1);
  Seal(&header);
  FrameHeader out;
  EXPECT_EQ(ParseAnswer(RawBytes(header), Op::kGet, 7, &out).code(), StatusCode::kDataLoss);
  header.status = WireStatus::kOk;
  header.body_bytes = kValueBytesLimit + 1;
  Seal(&header);
  EXPECT_EQ(ParseAnswer(RawBytes(header), Op::kGet, 7, &out).code(), StatusCode::kDataLoss);
  header.status = WireStatus::kInternal;
  header.body_bytes = kErrorTextMax + 1;
  Seal(&header);
  EXPECT_EQ(ParseAnswer(RawBytes(header), Op::kGet, 7, &out).code(), StatusCode::kDataLoss);
  header.body_bytes = kErrorTextMax;
  Seal(&header);
  EXPECT_TRUE(ParseAnswer(RawBytes(header), Op::kGet, 7, &out).ok());
}

TEST(ParseAnswerTest, AnAnswerHasNoKey) {
  FrameHeader header = Request(Op::kGet, 3, 0);
  header.slot = 0;
  Seal(&header);
  FrameHeader out;
  EXPECT_EQ(ParseAnswer(RawBytes(header), Op::kGet, 7, &out).code(), StatusCode::kDataLoss);
}

// A Multi request of the given keys (and value lengths), sealed, with its table.
struct Table {
  FrameHeader header;
  std::vector<std::byte> bytes;
  ConstBytes heads() const { return ConstBytes(bytes).first(header.item_count * sizeof(ItemHead)); }
};

Table MakeTable(Op op, const std::vector<std::string>& keys, uint64_t value_bytes = 0) {
  Table table;
  table.header.op = op;
  table.header.item_count = static_cast<uint16_t>(keys.size());
  uint64_t body = 0;
  for (const std::string& key : keys) {
    ItemHead head;
    head.slot = static_cast<uint16_t>(key.size());
    head.key_bytes = static_cast<uint16_t>(key.size());
    head.value_bytes = value_bytes;
    const ConstBytes raw = RawBytes(head);
    table.bytes.insert(table.bytes.end(), raw.begin(), raw.end());
    body += sizeof(head) + key.size() + (op == Op::kMultiPut ? value_bytes + kTrailerBytes : 0);
  }
  for (const std::string& key : keys) {
    const ConstBytes raw = AsBytes(key);
    table.bytes.insert(table.bytes.end(), raw.begin(), raw.end());
  }
  if (op == Op::kMultiGetRange) body += keys.size() * sizeof(RangeBody);
  table.header.body_bytes = body;
  SealRequest(table.bytes, &table.header);
  return table;
}

TEST(ItemTableTest, MeasuresAndReadsKeysOfAnyBytes) {
  const std::vector<std::string> keys = {"a", std::string("n\0l", 3), "h\xc3\xa9",
                                         std::string(512, 'x')};
  const Table table = MakeTable(Op::kMultiGet, keys);
  Result<uint64_t> bytes = ItemTableBytes(table.header, table.heads(), kValueMax);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_EQ(*bytes, table.bytes.size());
  ItemReader reader(table.header, table.bytes);
  for (const std::string& key : keys) {
    ASSERT_FALSE(reader.done());
    const ItemReader::Item item = reader.Next();
    EXPECT_EQ(item.key, key);
    EXPECT_EQ(item.head.slot, key.size());
  }
  EXPECT_TRUE(reader.done());
}

TEST(ItemTableTest, TheLargestBatchIsAccepted) {
  const Table table = MakeTable(Op::kMultiExists, std::vector<std::string>(kBatchItemsMax, "k"));
  FrameHeader out;
  ASSERT_TRUE(ParseRequest(RawBytes(table.header), kValueMax, &out).ok());
  Result<uint64_t> bytes = ItemTableBytes(table.header, table.heads(), kValueMax);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, table.bytes.size());
}

TEST(ItemTableTest, MultiPutCountsValuesAndTrailers) {
  const Table table = MakeTable(Op::kMultiPut, {"a", "bc"}, 100);
  Result<uint64_t> bytes = ItemTableBytes(table.header, table.heads(), kValueMax);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, 2 * sizeof(ItemHead) + 3);
}

TEST(ItemTableTest, RangesFollowTheKeys) {
  const Table table = MakeTable(Op::kMultiGetRange, {"a", "bc"});
  Result<uint64_t> bytes = ItemTableBytes(table.header, table.heads(), kValueMax);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_EQ(*bytes, table.bytes.size());
  std::vector<std::byte> body = table.bytes;
  for (const RangeBody& range : {RangeBody{1, 2}, RangeBody{3, 4}}) {
    const ConstBytes raw = RawBytes(range);
    body.insert(body.end(), raw.begin(), raw.end());
  }
  ASSERT_EQ(body.size(), table.header.body_bytes);
  EXPECT_EQ(RangeOf(table.header, body, 0).length, 2U);
  EXPECT_EQ(RangeOf(table.header, body, 1).offset, 3U);
}

TEST(ItemTableTest, LengthsThatDoNotAddUpAreInvalid) {
  for (const Op op :
       {Op::kMultiPut, Op::kMultiGet, Op::kMultiExists, Op::kMultiRemove, Op::kMultiGetRange}) {
    for (const int off : {-1, 1, 8, 1000}) {
      Table table = MakeTable(op, {"a", "bc"}, op == Op::kMultiPut ? 100 : 0);
      table.header.body_bytes += static_cast<uint64_t>(static_cast<int64_t>(off));
      EXPECT_EQ(ItemTableBytes(table.header, table.heads(), kValueMax).status().code(),
                StatusCode::kInvalidArgument)
          << OpName(op) << " off by " << off;
    }
  }
}

TEST(ItemTableTest, BadItemsAreInvalid) {
  EXPECT_EQ(Parse(MakeTable(Op::kMultiGet, {}).header), StatusCode::kInvalidArgument);
  for (const size_t key_bytes : {size_t{0}, kKeyBytesMax + 1}) {
    const Table table = MakeTable(Op::kMultiGet, {"a", std::string(key_bytes, 'k')});
    EXPECT_EQ(ItemTableBytes(table.header, table.heads(), kValueMax).status().code(),
              StatusCode::kInvalidArgument)
        << key_bytes;
  }
  const Table values = MakeTable(Op::kMultiGet, {"a"}, 1);
  EXPECT_EQ(ItemTableBytes(values.header, values.heads(), kValueMax).status().code(),
            StatusCode::kInvalidArgument);
  const Table large = MakeTable(Op::kMultiPut, {"a"}, 101);
  EXPECT_EQ(ItemTableBytes(large.header, large.heads(), 100).status().code(),
            StatusCode::kOutOfRange);
}

TEST(ItemTableTest, SlotOfAnItemIsBounded) {
  Table table = MakeTable(Op::kMultiGet, {"a"});
  ItemHead head = ReadRaw<ItemHead>(table.bytes);
  head.slot = kSlotCount;
  std::memcpy(table.bytes.data(), &head, sizeof(head));
  EXPECT_EQ(ItemTableBytes(table.header, table.heads(), kValueMax).status().code(),
            StatusCode::kInvalidArgument);
}

// Two lengths that wrap around 2^64 to the right sum.
TEST(ItemTableTest, SumsDoNotWrap) {
  Table table = MakeTable(Op::kMultiPut, {"a", "b"}, 0);
  for (size_t i = 0; i < 2; ++i) {
    ItemHead head = ReadRaw<ItemHead>(ConstBytes(table.bytes).subspan(i * sizeof(head)));
    head.value_bytes = uint64_t{1} << 63;
    std::memcpy(table.bytes.data() + i * sizeof(head), &head, sizeof(head));
  }
  EXPECT_FALSE(ItemTableBytes(table.header, table.heads(), kValueMax).ok());
}

TEST(ItemTableTest, ValuesOfOneBatchAreBounded) {
  const Table fits = MakeTable(Op::kMultiPut, {"a", "b", "c", "d"}, 64 * kMiB);
  EXPECT_TRUE(ItemTableBytes(fits.header, fits.heads(), kValueMax).ok());
  EXPECT_EQ(Parse(fits.header), StatusCode::kOk);
  const Table over = MakeTable(Op::kMultiPut, {"a", "b", "c", "d", "e"}, 64 * kMiB);
  const bool refused = Parse(over.header) != StatusCode::kOk ||
                       !ItemTableBytes(over.header, over.heads(), kValueMax).ok();
  EXPECT_TRUE(refused) << "320 MiB in one frame";
}

TEST(ItemTableTest, TheTableOfAMultiPutEndsWhereItsHeadsSay) {
  const Table good = MakeTable(Op::kMultiPut, {"a", "bc"}, 100);
  EXPECT_EQ(CoveredBytes(good.header), good.bytes.size());
  EXPECT_EQ(Parse(good.header), StatusCode::kOk);
  for (const int off : {-1, 1}) {
    Table table = good;
    table.header.table_bytes += static_cast<uint32_t>(off);
    EXPECT_EQ(ItemTableBytes(table.header, table.heads(), kValueMax).status().code(),
              StatusCode::kInvalidArgument);
  }
  // What no heads could say is not read at all.
  for (const uint64_t bytes :
       {uint64_t{0}, 2 * sizeof(ItemHead) + 1, 2 * (sizeof(ItemHead) + kKeyBytesMax) + 1,
        good.header.body_bytes, good.header.body_bytes - 2 * kTrailerBytes + 1}) {
    Table table = good;
    table.header.table_bytes = static_cast<uint32_t>(bytes);
    EXPECT_EQ(Parse(table.header), StatusCode::kInvalidArgument) << bytes;
  }
}

TEST(ItemTableTest, StagedValuesFollowTheKeys) {
  const Table table = MakeTable(Op::kMultiPutStaged, {"a", "bc"});
  FrameHeader header = table.header;
  std::vector<std::byte> body = table.bytes;
  for (const StagedValue& value : {StagedValue{.session = 1}, StagedValue{.session = 2}}) {
    const ConstBytes raw = RawBytes(value);
    body.insert(body.end(), raw.begin(), raw.end());
  }
  header.body_bytes = body.size();
  EXPECT_EQ(StagedOf(header, body, 0).session, 1U);
  EXPECT_EQ(StagedOf(header, body, 1).session, 2U);
  EXPECT_EQ(CoveredBytes(header), body.size());
}

// Each bit of key and body of a request, and of its checksum.
TEST(ChecksumTest, OfARequestCoversItsKeyAndAllOfItsBodyThatIsNoValue) {
  const std::string range(AsText(RawBytes(RangeBody{.offset = 1, .length = 2})));
  const std::string staged(AsText(RawBytes(StagedValue{.session = 1})));
  for (const auto& [op, key, body] : {std::tuple<Op, std::string, std::string>{Op::kGet, "key", ""},
                                      {Op::kPut, std::string(kKeyBytesMax, 'k'), ""},
                                      {Op::kGetRange, "key", range},
                                      {Op::kPutStaged, std::string(kKeyBytesMax, 'k'), staged},
                                      {Op::kMultiGet, "", "a table"},
                                      {Op::kAttach, "", "token"},
                                      {Op::kPing, "", ""}}) {
    SCOPED_TRACE(OpName(op));
    FrameHeader header = Request(op, static_cast<uint16_t>(key.size()), body.size());
    SealRequest(AsBytes(key + body), &header);
    EXPECT_TRUE(RequestMatches(header, key, AsBytes(body)));
    std::string all = key + body;
    for (size_t bit = 0; bit < all.size() * 8; ++bit) {
      all[bit / 8] = static_cast<char>(all[bit / 8] ^ (1 << (bit % 8)));
      const std::string_view damaged = all;
      EXPECT_FALSE(RequestMatches(header, damaged.substr(0, key.size()),
                                  AsBytes(damaged.substr(key.size()))))
          << bit;
      all[bit / 8] = static_cast<char>(all[bit / 8] ^ (1 << (bit % 8)));
    }
    header.checksum ^= 1;
    EXPECT_FALSE(RequestMatches(header, key, AsBytes(body)));
  }
}

TEST(ChecksumTest, OfAValueIsFoldedWithAllThatNamesIt) {
  FrameHeader request = Request(Op::kGet, 1, 0);
  SealRequest(AsBytes("k"), &request);
  const uint64_t folded = FoldChecksum(5, request, 1);
  EXPECT_EQ(FoldChecksum(folded, request, 1), 5U) << "there and back";
  std::set<uint64_t> others = {5, folded, FoldChecksum(6, request, 1), FoldChecksum(5, request, 0)};
  FrameHeader other = request;
  other.namespace_id++;
  others.insert(FoldChecksum(5, other, 1));
  other = request;
  other.namespace_generation++;
  others.insert(FoldChecksum(5, other, 1));
  for (const std::string_view name : {"l", "k1", "m"}) {  // another key; a key and a range
    other = request;
    SealRequest(AsBytes(name), &other);
    others.insert(FoldChecksum(5, other, 1));
  }
  EXPECT_EQ(others.size(), 9U) << "two of them are the same";
}

TEST(ChecksumTest, OfAnAnswerIsTheValuesOrThatOfItsBody) {
  FrameHeader request = Request(Op::kGet, 1, 0);
  SealRequest(AsBytes("k"), &request);
  FrameHeader answer;
  answer.op = Op::kGet;
  answer.checksum = 5;
  SealAnswer(request, {}, &answer);
  EXPECT_EQ(answer.checksum, FoldChecksum(5, request));
  FrameHeader exists;
  exists.op = Op::kExists;
  exists.object_bytes = 1000;
  SealAnswer(request, {}, &exists);
  EXPECT_EQ(exists.object_bytes, 1000U);
  for (FrameHeader text : {answer, exists}) {
    text.status = WireStatus::kFenced;
    SealAnswer(request, AsBytes("why"), &text);
    EXPECT_TRUE(AnswerMatches(text, AsBytes("why")));
    EXPECT_FALSE(AnswerMatches(text, AsBytes("whz")));
  }
  std::vector<ItemResult> results = {
      {.checksum = 5}, {.status = WireStatus::kMiss}, {.checksum = 5}};
  FrameHeader multi = request;
  multi.op = Op::kMultiGet;
  FoldResults(multi, std::as_writable_bytes(std::span(results)));
  EXPECT_EQ(results[0].checksum, FoldChecksum(5, multi, 0));
  EXPECT_EQ(results[1].checksum, 0U);
  EXPECT_EQ(results[2].checksum, FoldChecksum(5, multi, 2));
  multi.op = Op::kMultiExists;
  FoldResults(multi, std::as_writable_bytes(std::span(results)));
  EXPECT_EQ(results[1].checksum, 0U);
  EXPECT_EQ(results[2].checksum, FoldChecksum(5, multi, 2)) << "left alone";
}

TEST(HelloBodyTest, OnlyKnownClustersAreStrangers) {
  HelloBody hello;
  EXPECT_FALSE(hello.IsStrangerTo(ClusterId(7)));
  hello.SetCluster(ClusterId(0x0102030405060708));
  EXPECT_EQ(hello.cluster_bits(), 0x030405060708U);
  EXPECT_FALSE(hello.IsStrangerTo(ClusterId(0x0102030405060708)));
  EXPECT_FALSE(hello.IsStrangerTo(kNoCluster));
  EXPECT_TRUE(hello.IsStrangerTo(ClusterId(0x0102030405060709)));
}

}  // namespace
}  // namespace ems::wire
