// What must hold: one frame for each server and round, within the limits of a frame, in one order
// of servers for all calls.
#include "mp_sdk/internal/batch_planner.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/checksum.h"

namespace ems::internal {
namespace {

using wire::Op;
using wire::WireStatus;

// Slot s belongs to node s % nodes + 1; the last 96 slots to nobody.
std::shared_ptr<const DhtView> MakeView(uint32_t nodes) {
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount - 96; ++s) slots.set_owner(SlotId(s), NodeId(s % nodes + 1));
  std::vector<NodeInfo> infos(nodes);
  for (uint32_t i = 0; i < nodes; ++i) infos[i].id = NodeId(i + 1);
  return *DhtView::Make(ViewVersion(1, 1), infos, slots, false);
}

struct Fixture {
  explicit Fixture(Op op, size_t count, uint32_t value_bytes = 0)
      : keys(count), value(value_bytes, 'v') {
    batch.op = op;
    batch.ns = {NamespaceId(4), 2};
    batch.deadline = Deadline::After(std::chrono::seconds(10));
    batch.items.resize(count);
    for (size_t i = 0; i < count; ++i) {
      keys[i] = "key" + std::to_string(i);
      batch.items[i].key = keys[i];
      batch.items[i].slot = SlotId(static_cast<uint16_t>(i % 3000));
      batch.items[i].value = std::string_view(value);
    }
  }
  std::vector<std::string> keys;
  std::string value;
  Batch batch{Op::kGet, 0, {}, Deadline(TimePoint()), {}};
};

// With room for all values that are spoken of here.
wire::FrameHeader LongAnswer() {
  wire::FrameHeader header;
  header.body_bytes = kMiB;
  return header;
}

TEST(PlanFramesTest, GroupsByOwnerInOrderOfServers) {
  Fixture f(Op::kExists, 100);
  std::swap(f.batch.items[0], f.batch.items[2]);  // the first item goes to the last server
  const auto frames = PlanFrames(&f.batch, *MakeView(3));
  ASSERT_EQ(frames.size(), 3U);
  size_t total = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(frames[i]->node(), NodeId(static_cast<uint32_t>(i + 1)))
        << "calls that take connections in different orders wait for each other";
    for (const BatchItem* item : frames[i]->items()) {
      EXPECT_EQ(item->slot.value() % 3 + 1U, frames[i]->node().value());
    }
    total += frames[i]->items().size();
  }
  EXPECT_EQ(total, 100U);
}

TEST(PlanFramesTest, ItemsWithoutAnOwnerAreUnavailableTheOthersGo) {
  Fixture f(Op::kExists, 3);
  f.batch.items[1].slot = SlotId(kSlotCount - 1);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0]->items().size(), 2U);
  EXPECT_FALSE(f.batch.items[1].open);
  EXPECT_EQ(f.batch.items[1].status.code(), StatusCode::kUnavailable);
}

TEST(PlanFramesTest, ItemsWithResultsAreLeftAlone) {
  Fixture f(Op::kExists, 3);
  f.batch.Finish(&f.batch.items[0], Miss());
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0]->items().size(), 2U);
}

TEST(PlanFramesTest, AFrameTakes16384Items) {
  Fixture f(Op::kExists, wire::kBatchItemsMax + 5);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0]->items().size(), wire::kBatchItemsMax);
  EXPECT_TRUE(f.batch.items.back().open) << "for the next round";
}

TEST(PlanFramesTest, AFrameTakes256MiBOfValues) {
  Fixture f(Op::kPut, 9, 1 << 20);
  const std::vector<ConstBytes> parts(32, AsBytes(f.value));  // 32 MiB, without having them
  for (BatchItem& item : f.batch.items) item.value = std::span<const ConstBytes>(parts);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0]->items().size(), 8U);
}

TEST(PlanFramesTest, ALargerValueThanAFrameGoesAlone) {
  Fixture f(Op::kPut, 2, 1 << 20);
  const std::vector<ConstBytes> parts(300, AsBytes(f.value));
  f.batch.items[0].value = std::span<const ConstBytes>(parts);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0]->items().size(), 1U);
}

TEST(FrameTest, EncodesASinglePut) {
  Fixture f(Op::kPut, 1, 100);
  f.batch.flags = wire::kFlagOverwrite;
  f.batch.items[0].slot = SlotId(9);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  fabric::RpcRequest request;
  frames[0]->Encode(ViewVersion(2, 3), &request);
  EXPECT_EQ(request.header.op, Op::kPut);
  EXPECT_EQ(request.header.flags, wire::kFlagOverwrite);
  EXPECT_EQ(request.header.view_version(), ViewVersion(2, 3));
  EXPECT_EQ(request.header.ns(), (NamespaceRef{NamespaceId(4), 2}));
  EXPECT_EQ(request.header.slot, 9);
  EXPECT_EQ(request.key_bytes, 4U);
  EXPECT_EQ(AsText(request.head), "key0");
  ASSERT_EQ(request.values.size(), 1U);
  EXPECT_EQ(request.values[0][0].size(), 100U);
  EXPECT_GT(request.header.deadline_ms, 5000U);
}

TEST(FrameTest, ADeadlineThatHasPassedIsSaid) {
  Fixture f(Op::kGet, 1);
  f.batch.deadline = Deadline(TimePoint());
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  fabric::RpcRequest request;
  frames[0]->Encode(ViewVersion(2, 3), &request);
  EXPECT_EQ(request.header.deadline_ms, 1U) << "0 says that any time will do";
}

TEST(FrameTest, EncodesAMultiPut) {
  Fixture f(Op::kPut, 2, 100);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  fabric::RpcRequest request;
  frames[0]->Encode(ViewVersion(2, 3), &request);
  EXPECT_EQ(request.header.op, Op::kMultiPut);
  EXPECT_EQ(request.header.item_count, 2U);
  EXPECT_EQ(request.key_bytes, 0U);
  EXPECT_EQ(request.head.size(), 2 * sizeof(wire::ItemHead) + 8);
  const auto head = wire::ReadRaw<wire::ItemHead>(ConstBytes(request.head).subspan(16));
  EXPECT_EQ(head.value_bytes, 100U);
  EXPECT_EQ(head.slot, 1U);
}

// Answers of one item each way; the values' checksums as in an answer to `request`.
struct Results {
  explicit Results(const std::vector<wire::ItemResult>& results) {
    for (const auto& result : results) {
      const ConstBytes raw = wire::RawBytes(result);
      bytes.insert(bytes.end(), raw.begin(), raw.end());
    }
  }
  Results(const wire::FrameHeader& request, const std::vector<wire::ItemResult>& results)
      : Results(results) {
    wire::FoldResults(request, bytes);
  }
  std::vector<std::byte> bytes;
};

TEST(FrameTest, EachItemGetsItsOwnResult) {
  Fixture f(Op::kExists, 5);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  const Results results({{.status = WireStatus::kOk, .value_bytes = 77},
                         {.status = WireStatus::kMiss},
                         {.status = WireStatus::kWrongOwner},
                         {.status = WireStatus::kRetryLater},
                         {.status = WireStatus::kFenced}});
  EXPECT_EQ(frames[0]->OnHeader(LongAnswer()), results.bytes.size());
  ASSERT_TRUE(frames[0]->OnTable(results.bytes).ok());
  const std::vector<BatchItem>& items = f.batch.items;
  EXPECT_TRUE(!items[0].open && items[0].status.ok());
  EXPECT_EQ(items[0].value_bytes, 77U);
  EXPECT_TRUE(!items[1].open && items[1].status == Miss());
  EXPECT_TRUE(items[2].open);
  EXPECT_TRUE(items[3].open);
  EXPECT_EQ(items[4].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(frames[0]->unsettled(), WireStatus::kWrongOwner);
}

TEST(FrameTest, AnItemWithUnknownStatusIsDamage) {
  Fixture f(Op::kExists, 2);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  const Results results({{}, {.status = static_cast<WireStatus>(99)}});
  frames[0]->OnHeader(LongAnswer());
  EXPECT_EQ(frames[0]->OnTable(results.bytes).code(), StatusCode::kDataLoss);
}

// Memory is taken for values that can come, not for what a table says.
TEST(FrameTest, ValuesOfMoreBytesThanTheAnswerHasAreDamage) {
  Fixture f(Op::kGet, 1);
  std::string grown;
  f.batch.items[0].grow = &grown;
  f.batch.asks_tier = true;  // else there is no table
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  for (const uint64_t bytes : {uint64_t{21}, uint64_t{1} << 60}) {
    const Results results(std::vector<wire::ItemResult>{{.value_bytes = bytes}});
    wire::FrameHeader header;
    header.body_bytes = results.bytes.size() + 20;
    frames[0]->OnHeader(header);
    EXPECT_EQ(frames[0]->OnTable(results.bytes).code(), StatusCode::kDataLoss);
  }
  EXPECT_TRUE(grown.empty());
}

TEST(FrameTest, ValuesThatTogetherAreOfMoreBytesThanTheAnswerHasAreDamage) {
  const Results results({{.value_bytes = 10}, {.value_bytes = 10}});
  const uint64_t table_bytes = results.bytes.size();
  for (const uint64_t bytes : {table_bytes + 20, table_bytes + 19, table_bytes - 1}) {
    Fixture f(Op::kGet, 2);
    const auto frames = PlanFrames(&f.batch, *MakeView(1));
    wire::FrameHeader header;
    header.body_bytes = bytes;
    frames[0]->OnHeader(header);
    EXPECT_EQ(frames[0]->OnTable(results.bytes).code(),
              bytes == table_bytes + 20 ? StatusCode::kOk : StatusCode::kDataLoss);
  }
}

// It is the caller's answer, not the end of the caller's process.
TEST(FrameTest, AValueThatThereIsNoMemoryForIsDroppedAndSaidSo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the process where an allocation fails";
#endif
  Fixture f(Op::kGet, 1);
  std::string grown = "of before";
  f.batch.items[0].grow = &grown;
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  fabric::RpcRequest request;
  frames[0]->Encode(ViewVersion(1, 1), &request);
  wire::FrameHeader header;
  header.body_bytes = uint64_t{1} << 60;  // of which no address space has room
  header.checksum = wire::FoldChecksum(5, request.header);
  frames[0]->OnHeader(header);
  fabric::AnswerSink::Value value;
  ASSERT_TRUE(frames[0]->NextValue(&value));
  EXPECT_EQ(value.bytes, header.body_bytes) << "they are read, so that the connection goes on";
  ASSERT_EQ(value.into.size(), 1U);
  EXPECT_TRUE(value.into[0].empty());
  frames[0]->OnValue(5);
  EXPECT_EQ(f.batch.items[0].status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(grown.empty());
}

// What is asked again was not carried out before.
TEST(FrameTest, ARemoveThatWasRetriedAndFindsNothingIsAMiss) {
  Fixture f(Op::kRemove, 2);
  f.batch.items[0].retried = true;
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  frames[0]->OnHeader(LongAnswer());
  const Results results({{.status = WireStatus::kMiss}, {.status = WireStatus::kMiss}});
  ASSERT_TRUE(frames[0]->OnTable(results.bytes).ok());
  EXPECT_EQ(f.batch.items[0].status, Miss());
  EXPECT_EQ(f.batch.items[1].status, Miss());
}

TEST(BatchTest, ReadsAndPutsOfWhatCannotChangeMayBeRepeated) {
  for (const bool immutable : {false, true}) {
    for (const uint16_t flags : {uint16_t{0}, wire::kFlagOverwrite}) {
      const auto may_repeat = [&](Op op) {
        Fixture f(op, 1);
        f.batch.flags = flags;
        f.batch.immutable = immutable;
        return f.batch.MayRepeat();
      };
      for (const Op op : {Op::kGet, Op::kGetRange, Op::kExists}) EXPECT_TRUE(may_repeat(op));
      EXPECT_EQ(may_repeat(Op::kPut), immutable && flags == 0);
      EXPECT_FALSE(may_repeat(Op::kRemove));
    }
  }
}

// Sends a frame of two items, of which the server has `sent` bytes; the items that stay open.
std::vector<bool> OpenAfter(Op op, uint64_t sent, const Status& why,
                            std::vector<StatusCode>* codes) {
  Fixture f(op, 2, 100);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  fabric::RpcRequest request;
  frames[0]->Encode(ViewVersion(1, 1), &request);
  frames[0]->FinishUnknown(sent, why);
  std::vector<bool> open;
  for (const BatchItem& item : f.batch.items) {
    open.push_back(item.open);
    codes->push_back(item.status.code());
    if (!item.open) {
      EXPECT_NE(Message(item.status).find("outcome unknown"), std::string_view::npos);
    }
  }
  return open;
}

TEST(FrameTest, OnlyWhatWasNotSentWholeIsKnownNotToBeDone) {
  using Bools = std::vector<bool>;
  const Status broken = Error(StatusCode::kUnavailable, "connection closed by the server");
  const uint64_t table = wire::kHeaderBytes + 2 * (sizeof(wire::ItemHead) + 4);
  const uint64_t one = 100 + wire::kTrailerBytes;
  std::vector<StatusCode> codes;
  EXPECT_EQ(OpenAfter(Op::kPut, 0, broken, &codes), Bools({true, true}));
  EXPECT_EQ(OpenAfter(Op::kPut, table + one - 1, broken, &codes), Bools({true, true}));
  EXPECT_EQ(OpenAfter(Op::kPut, table + one, broken, &codes), Bools({false, true}));
  EXPECT_EQ(OpenAfter(Op::kPut, table + 2 * one - 1, broken, &codes), Bools({false, true}));
  codes.clear();
  EXPECT_EQ(OpenAfter(Op::kPut, table + 2 * one, broken, &codes), Bools({false, false}));
  EXPECT_EQ(codes, std::vector(2, StatusCode::kAborted));
  EXPECT_EQ(OpenAfter(Op::kRemove, table - 1, broken, &codes), Bools({true, true}));
  codes.clear();
  EXPECT_EQ(OpenAfter(Op::kRemove, table, Error(StatusCode::kDeadlineExceeded, "late"), &codes),
            Bools({false, false}));
  EXPECT_EQ(codes, std::vector(2, StatusCode::kDeadlineExceeded));
  EXPECT_EQ(OpenAfter(Op::kExists, table, broken, &codes), Bools({true, true}));
}

TEST(FrameTest, AValueWithAnotherChecksumIsAskedForOnceMoreThenItIsDataLoss) {
  Fixture f(Op::kGet, 1);
  f.batch.flags = wire::kFlagNoTouch;
  std::string into(10, '\0');
  f.batch.items[0].into = std::as_writable_bytes(std::span(into));
  for (const bool again : {false, true}) {
    ASSERT_TRUE(f.batch.items[0].open);
    const auto frames = PlanFrames(&f.batch, *MakeView(1));
    fabric::RpcRequest request;
    frames[0]->Encode(ViewVersion(1, 1), &request);
    EXPECT_EQ(request.header.flags, wire::kFlagNoTouch | (again ? wire::kFlagCheck : 0));
    wire::FrameHeader header;
    header.body_bytes = 10;
    header.checksum = wire::FoldChecksum(5, request.header);
    EXPECT_EQ(frames[0]->OnHeader(header), 0U);
    fabric::AnswerSink::Value value;
    ASSERT_TRUE(frames[0]->NextValue(&value));
    EXPECT_EQ(value.bytes, 10U);
    frames[0]->OnValue(6);
    EXPECT_EQ(f.batch.items[0].status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(frames[0]->checksum_mismatches(), 1U);
    EXPECT_FALSE(frames[0]->NextValue(&value));
  }
  EXPECT_FALSE(f.batch.items[0].open);
}

TEST(FrameTest, WhatCameDamagedIsRightOrMissingTheSecondTime) {
  Fixture f(Op::kGet, 3);
  std::string into(30, '\0');
  for (size_t i = 0; i < 3; ++i)
    f.batch.items[i].into = std::as_writable_bytes(std::span(into)).subspan(10 * i, 10);
  fabric::AnswerSink::Value value;
  {
    const auto frames = PlanFrames(&f.batch, *MakeView(1));
    fabric::RpcRequest request;
    frames[0]->Encode(ViewVersion(1, 1), &request);
    const wire::ItemResult ten{.value_bytes = 10, .checksum = 5};
    const Results results(request.header, {ten, ten, ten});
    frames[0]->OnHeader(LongAnswer());
    ASSERT_TRUE(frames[0]->OnTable(results.bytes).ok());
    for (const uint64_t sum : {uint64_t{6}, uint64_t{5}, uint64_t{7}}) {
      ASSERT_TRUE(frames[0]->NextValue(&value));
      frames[0]->OnValue(sum);
    }
    EXPECT_EQ(frames[0]->checksum_mismatches(), 2U);
    EXPECT_EQ(frames[0]->unsettled(), WireStatus::kOk) << "nothing to wait for";
  }
  EXPECT_FALSE(f.batch.items[1].open);
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  ASSERT_EQ(frames[0]->items().size(), 2U);
  fabric::RpcRequest request;
  frames[0]->Encode(ViewVersion(1, 1), &request);
  frames[0]->OnHeader(LongAnswer());
  const Results results(request.header,
                        {{.value_bytes = 10, .checksum = 5}, {.status = WireStatus::kMiss}});
  ASSERT_TRUE(frames[0]->OnTable(results.bytes).ok());
  ASSERT_TRUE(frames[0]->NextValue(&value));
  frames[0]->OnValue(5);
  EXPECT_FALSE(frames[0]->NextValue(&value));
  EXPECT_TRUE(!f.batch.items[0].open && f.batch.items[0].status.ok());
  EXPECT_TRUE(!f.batch.items[2].open && f.batch.items[2].status == Miss());
}

TEST(FrameTest, ARangeThatTheServerFoundDamagedIsAskedForOnceMore) {
  Fixture f(Op::kGetRange, 2);
  const Results results(
      {{.status = WireStatus::kChecksumMismatch}, {.status = WireStatus::kChecksumMismatch}});
  for (const bool again : {false, true}) {
    const auto frames = PlanFrames(&f.batch, *MakeView(1));
    frames[0]->OnHeader(LongAnswer());
    ASSERT_TRUE(frames[0]->OnTable(results.bytes).ok());
    for (const BatchItem& item : f.batch.items) {
      EXPECT_EQ(item.open, !again);
      EXPECT_EQ(item.status.code(), StatusCode::kDataLoss);
    }
  }
}

// It was not carried out, so that once more does no harm.
TEST(FrameTest, WhatWasSentDamagedIsSentOnceMoreThenItIsDataLoss) {
  for (const Op op : {Op::kPut, Op::kRemove}) {
    Fixture f(op, 1, op == Op::kPut ? 10 : 0);
    for (const bool again : {false, true}) {
      const auto frames = PlanFrames(&f.batch, *MakeView(1));
      fabric::RpcRequest request;
      frames[0]->Encode(ViewVersion(1, 1), &request);
      EXPECT_EQ(request.header.flags, 0) << "there is nothing to look at";
      frames[0]->SetWholeStatus(WireStatus::kChecksumMismatch, "");
      EXPECT_EQ(f.batch.items[0].open, !again);
      EXPECT_EQ(f.batch.items[0].status.code(), StatusCode::kDataLoss);
    }
  }
}

TEST(FrameTest, ARangeStartsInsideItsPiece) {
  for (const uint64_t offset :
       {uint64_t{0}, uint64_t{1}, kPieceBytes - 1, kPieceBytes, 3 * kPieceBytes + 7}) {
    Fixture f(Op::kGetRange, 1);
    std::string into(10, '\0');
    f.batch.items[0].into = std::as_writable_bytes(std::span(into));
    f.batch.items[0].offset = offset;
    const auto frames = PlanFrames(&f.batch, *MakeView(1));
    wire::FrameHeader header;
    header.body_bytes = 10;
    frames[0]->OnHeader(header);
    fabric::AnswerSink::Value value;
    ASSERT_TRUE(frames[0]->NextValue(&value));
    EXPECT_EQ(value.first_piece_bytes, kPieceBytes - offset % kPieceBytes);
  }
}

TEST(FrameTest, ManyRangesGoInOneFrameAndComeBackEachForItself) {
  Fixture f(Op::kGetRange, 4);
  std::string into(40, '\0');
  for (size_t i = 0; i < 4; ++i) {
    f.batch.items[i].into = std::as_writable_bytes(std::span(into)).subspan(10 * i, 10);
    f.batch.items[i].offset = 1000 * i;
    f.batch.items[i].whole_bytes = 5000;
  }
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  ASSERT_EQ(frames.size(), 1U);
  Frame& frame = *frames[0];
  fabric::RpcRequest request;
  frame.Encode(ViewVersion(1, 1), &request);
  EXPECT_EQ(request.header.op, Op::kMultiGetRange);
  ASSERT_EQ(request.head.size(),
            4 * (sizeof(wire::ItemHead) + f.keys[0].size() + sizeof(wire::RangeBody)));
  request.header.body_bytes = request.head.size();
  EXPECT_EQ(wire::RangeOf(request.header, request.head, 2).offset, 2000U);
  EXPECT_EQ(wire::RangeOf(request.header, request.head, 3).length, 10U);

  EXPECT_EQ(frame.OnHeader(LongAnswer()), 4 * sizeof(wire::ItemResult));
  const Results results(request.header, {{.whole_bytes = 5000, .value_bytes = 10, .checksum = 5},
                                         {.status = WireStatus::kMiss},
                                         {.whole_bytes = 4999, .value_bytes = 10, .checksum = 6},
                                         {.status = WireStatus::kBatchFull}});
  ASSERT_TRUE(frame.OnTable(results.bytes).ok());
  fabric::AnswerSink::Value value;
  ASSERT_TRUE(frame.NextValue(&value));
  EXPECT_EQ(value.into[0].data(), static_cast<void*>(into.data()));
  frame.OnValue(5);
  ASSERT_TRUE(frame.NextValue(&value));
  EXPECT_EQ(value.first_piece_bytes, kPieceBytes - 2000);
  frame.OnValue(6);
  EXPECT_FALSE(frame.NextValue(&value));
  EXPECT_TRUE(f.batch.items[0].status.ok());
  EXPECT_EQ(f.batch.items[1].status, Miss());
  EXPECT_EQ(f.batch.items[2].status.code(), StatusCode::kOutOfRange) << "not of that length";
  EXPECT_TRUE(f.batch.items[3].open) << "it goes in the next round";
}

TEST(FrameTest, WhoAsksForTheTierGetsItAlsoOfASingleItem) {
  Fixture f(Op::kExists, 1);
  f.batch.asks_tier = true;
  const auto frames = PlanFrames(&f.batch, *MakeView(1));
  fabric::RpcRequest request;
  frames[0]->Encode(ViewVersion(1, 1), &request);
  EXPECT_EQ(request.header.op, Op::kMultiExists);
  EXPECT_EQ(request.header.item_count, 1);
  EXPECT_EQ(frames[0]->OnHeader(LongAnswer()), sizeof(wire::ItemResult));
  for (const auto& [said, tier] :
       {std::pair{wire::ItemTier::kDram, Tier::kDram}, std::pair{wire::ItemTier::kSsd, Tier::kSsd},
        std::pair{wire::ItemTier(7), Tier::kUnknown}}) {
    f.batch.items[0].open = true;
    const Results results({{.tier = said, .value_bytes = 10}});
    ASSERT_TRUE(frames[0]->OnTable(results.bytes).ok());
    EXPECT_EQ(f.batch.items[0].tier, tier);
    EXPECT_EQ(f.batch.items[0].value_bytes, 10U);
  }
}

TEST(FrameTest, ARangeOfAValueOfAnotherLengthIsRefused) {
  for (const uint64_t told : {uint64_t{0}, uint64_t{99}, uint64_t{100}, uint64_t{101}}) {
    Fixture f(Op::kGetRange, 1);
    std::string into(10, '\0');
    f.batch.items[0].into = std::as_writable_bytes(std::span(into));
    f.batch.items[0].whole_bytes = 100;
    const auto frames = PlanFrames(&f.batch, *MakeView(1));
    fabric::RpcRequest request;
    frames[0]->Encode(ViewVersion(1, 1), &request);
    wire::FrameHeader header;
    header.body_bytes = 10;
    header.checksum = wire::FoldChecksum(5, request.header);
    header.whole_bytes = static_cast<uint32_t>(told);
    frames[0]->OnHeader(header);
    fabric::AnswerSink::Value value;
    ASSERT_TRUE(frames[0]->NextValue(&value));
    frames[0]->OnValue(5);
    EXPECT_EQ(f.batch.items[0].status.code(),
              told == 100 ? StatusCode::kOk : StatusCode::kOutOfRange);
  }
}

TEST(StagedFrameTest, ValuesGoByTheirPlaceAlone) {
  Fixture f(Op::kPut, 2, 1000);
  Frame frame(&f.batch, NodeId(1), StagedSession{.session = 11, .secret = 22, .bytes = kMiB});
  f.batch.items[0].staged_offset = 4096;
  f.batch.items[1].staged_offset = 8192;
  ASSERT_TRUE(frame.TryAdd(&f.batch.items[0]));
  ASSERT_TRUE(frame.TryAdd(&f.batch.items[1]));
  fabric::RpcRequest request;
  frame.Encode(ViewVersion(1, 1), &request);
  EXPECT_EQ(request.header.op, Op::kMultiPutStaged);
  EXPECT_TRUE(request.values.empty());
  const ConstBytes head = request.head;
  ASSERT_EQ(head.size(), 2 * sizeof(wire::ItemHead) + 8 + 2 * sizeof(wire::StagedValue));
  EXPECT_EQ(wire::ReadRaw<wire::ItemHead>(head.first(sizeof(wire::ItemHead))).value_bytes, 1000U);
  const auto last = wire::ReadRaw<wire::StagedValue>(head.last(sizeof(wire::StagedValue)));
  EXPECT_EQ(last.session, 11U);
  EXPECT_EQ(last.secret, 22U);
  EXPECT_EQ(last.offset, 8192U);
  EXPECT_EQ(last.bytes, 1000U);
}

TEST(StagedFrameTest, ASingleValueHasNoTable) {
  Fixture f(Op::kPut, 1, 1000);
  Frame frame(&f.batch, NodeId(1), StagedSession{.session = 11, .secret = 22, .bytes = kMiB});
  f.batch.items[0].staged_offset = 0;
  ASSERT_TRUE(frame.TryAdd(&f.batch.items[0]));
  fabric::RpcRequest request;
  frame.Encode(ViewVersion(1, 1), &request);
  EXPECT_EQ(request.header.op, Op::kPutStaged);
  EXPECT_EQ(request.key_bytes, 4);
  EXPECT_EQ(request.head.size(), 4 + sizeof(wire::StagedValue));
}

TEST(StagedFrameTest, TheKindsDoNotShareAFrame) {
  Fixture f(Op::kPut, 2, 10);
  f.batch.items[1].staged_offset = 4096;
  const StagedSession session{.session = 11, .secret = 22, .bytes = kMiB};
  Frame ordinary(&f.batch, NodeId(1), session), staged(&f.batch, NodeId(1), session);
  EXPECT_TRUE(ordinary.TryAdd(&f.batch.items[0]));
  EXPECT_FALSE(ordinary.TryAdd(&f.batch.items[1]));
  EXPECT_TRUE(staged.TryAdd(&f.batch.items[1]));
  EXPECT_FALSE(staged.TryAdd(&f.batch.items[0]));
  Frame elsewhere(&f.batch, NodeId(1));  // a server that has not taken the memory
  EXPECT_TRUE(elsewhere.TryAdd(&f.batch.items[0]));
  EXPECT_TRUE(elsewhere.TryAdd(&f.batch.items[1]));
}

TEST(StagedFrameTest, WhatTheServerHasNotYetMappedGoesWithItsBytes) {
  Fixture f(Op::kPut, 3, 10);
  const StagedSession session{.session = 11, .secret = 22, .bytes = 8192};
  f.batch.items[0].staged_offset = 8192 - 10;
  f.batch.items[1].staged_offset = 8192 - 9;
  f.batch.items[2].staged_offset = 4096;
  f.batch.items[2].staged_progress = 8192;
  Frame staged(&f.batch, NodeId(1), session), ordinary(&f.batch, NodeId(1), session);
  EXPECT_TRUE(staged.TryAdd(&f.batch.items[0]));
  EXPECT_FALSE(staged.TryAdd(&f.batch.items[1]));
  EXPECT_FALSE(staged.TryAdd(&f.batch.items[2])) << "its progress would not be seen";
  EXPECT_TRUE(ordinary.TryAdd(&f.batch.items[1]));
  EXPECT_TRUE(ordinary.TryAdd(&f.batch.items[2]));
}

TEST(StagedFrameTest, ItemsThatWereNotTakenInPlaceStayOpenForTheirBytes) {
  Fixture f(Op::kPut, 2, 10);
  Frame frame(&f.batch, NodeId(1), StagedSession{.session = 11, .secret = 22, .bytes = kMiB});
  for (BatchItem& item : f.batch.items) {
    item.staged_offset = 4096;
    ASSERT_TRUE(frame.TryAdd(&item));
  }
  wire::FrameHeader answer;
  ASSERT_EQ(frame.OnHeader(answer), 2 * sizeof(wire::ItemResult));
  std::vector<wire::ItemResult> results(2);
  results[1].status = WireStatus::kInvalid;
  ASSERT_TRUE(frame.OnTable(std::as_bytes(std::span(results))).ok());
  EXPECT_FALSE(f.batch.items[0].open);
  EXPECT_TRUE(f.batch.items[0].status.ok());
  EXPECT_TRUE(f.batch.items[1].open);
  EXPECT_FALSE(f.batch.items[1].staged_offset);
  EXPECT_TRUE(frame.staging_refused());
  EXPECT_EQ(frame.unsettled(), WireStatus::kOk);
}

}  // namespace
}  // namespace ems::internal
