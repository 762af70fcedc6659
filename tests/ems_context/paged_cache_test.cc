// Saves and loads through a store in memory; tests/e2e/paged_kv_test.cc uses real servers.
#include "ems_context/paged_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/thread_pool.h"
#include "tests/ems_context/fake_block_store.h"
#include "tests/ems_context/paged_memory.h"

namespace ems::context {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::PagedMemory;
using test::SlowGather;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;

// Holds a store's calls back until it is opened.
class Gate final {
 public:
  // Returns the number of calls that had arrived before.
  void Pass() {
    auto state = state_.Lock();
    ++state->arrived;
    changed_.notify_all();
    const size_t mine = state->arrived;
    state.Wait(changed_, [mine](const State& now) { return now.open >= mine; });
  }
  void Open(size_t calls) {
    auto state = state_.Lock();
    state->open += calls;
    changed_.notify_all();
  }
  void WaitForArrivals(size_t calls) {
    auto state = state_.Lock();
    state.Wait(changed_, [calls](const State& now) { return now.arrived >= calls; });
  }

 private:
  struct State {
    size_t arrived = 0, open = 0;
  };
  Guarded<State> state_;
  std::condition_variable changed_;
};

template <typename T>
std::vector<StatusCode> Codes(const std::vector<T>& results) {
  std::vector<StatusCode> codes;
  for (const T& one : results) {
    if constexpr (std::is_same_v<T, Status>)
      codes.push_back(one.code());
    else
      codes.push_back(one.status().code());
  }
  return codes;
}

constexpr auto kOk = StatusCode::kOk;
constexpr auto kNotFound = StatusCode::kNotFound;
constexpr auto kCancelled = StatusCode::kCancelled;

class PagedCacheTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kTokens = 24;  // of a block: a page and a half
  static constexpr size_t kLayers = 5;

  PagedCacheTest() {
    for (size_t i = 0; i < kLayers; ++i) {
      KvLayer layer;
      layer.tensors = {memory_.Add({2, 8, KvDtype::kBfloat16, KvOrder::kHeadsFirst}),
                       memory_.Add({1, 16, KvDtype::kFloat16, KvOrder::kTokensFirst, 8})};
      layer.group = i == 3 ? 1 : 0;
      layers_.push_back(std::move(layer));
    }
    memory_.Fill(1);
  }
  ~PagedCacheTest() override { gate_.Open(1000); }

  PagedCache& Cache(const PagedOptions& options = {}) {
    cache_ = std::make_unique<PagedCache>(&context_, &store_, *KvLayout::Make(layers_), options);
    return *cache_;
  }
  // Slots of block i: scattered, none twice.
  std::vector<int64_t> Slots(size_t i) const {
    std::vector<int64_t> slots;
    for (size_t t = 0; t < kTokens; ++t)
      slots.push_back(static_cast<int64_t>((i * kTokens + t * 5 % kTokens) % 256));
    return slots;
  }
  PagedBlock Block(const std::string& key, size_t i) const {
    return {key, {RunsOf(Slots(i)), RunsOf(Slots(i))}};
  }
  std::string Bytes(size_t i) const {
    return SlowGather(layers_, 0, Slots(i)) + SlowGather(layers_, 1, Slots(i));
  }
  void HoldBack(const std::string& operation) {
    store_.SetGate([this, operation](const std::string& what) {
      if (what == operation) gate_.Pass();
    });
  }

  PagedMemory memory_{16, 16};
  std::vector<KvLayer> layers_;
  Gate gate_;
  test::FakeBlockStore store_;
  ContextCache context_{&store_, {.timeout = seconds(20)}};
  std::unique_ptr<PagedCache> cache_;
};

TEST_F(PagedCacheTest, WhatIsSavedIsTheBlockAndLoadsIntoOtherSlots) {
  PagedCache& cache = Cache();
  const SaveResult saved =
      cache.Save(std::vector{Block("a", 0), Block("b", 1)}, SavePhase::kPrefill);
  EXPECT_THAT(Codes(saved.blocks), ElementsAre(kOk, kOk));
  EXPECT_EQ(saved.stored_blocks, 2u);
  const std::string a = Bytes(0), b = Bytes(1);
  EXPECT_EQ(store_.Get("a"), a);
  EXPECT_EQ(store_.Get("b"), b);
  memory_.Clear();
  const LoadResult loaded =
      cache.Load(std::vector{Block("b", 4), Block("absent", 5), Block("a", 6)});
  EXPECT_THAT(Codes(loaded.blocks), ElementsAre(kOk, kNotFound, kOk));
  EXPECT_EQ(*loaded.blocks[0], a.size());
  EXPECT_EQ(loaded.leading_blocks, 1u);
  EXPECT_EQ(Bytes(4), b);
  EXPECT_EQ(Bytes(6), a);
}

TEST_F(PagedCacheTest, OnlyTheSlotsNamedAreWritten) {
  PagedCache& cache = Cache();
  cache.Save(std::vector{Block("a", 0)}, SavePhase::kPrefill);
  const std::string a = Bytes(0);
  memory_.Clear();
  for (uint32_t group = 0; group < 2; ++group)
    test::SlowScatter(layers_, group, Slots(2),
                      group == 0 ? a.substr(0, SlowGather(layers_, 0, Slots(0)).size())
                                 : a.substr(SlowGather(layers_, 0, Slots(0)).size()));
  const auto expected = memory_.Copy();
  memory_.Clear();
  cache.Load(std::vector{Block("a", 2)});
  EXPECT_EQ(memory_.Copy(), expected);
}

TEST_F(PagedCacheTest, AnotherLengthIsAMissInEveryWayOfLoading) {
  PagedCache& cache = Cache();
  store_.Set("short", Bytes(0).substr(1));
  store_.Set("long", Bytes(0) + "x");
  const std::vector blocks{Block("short", 0), Block("long", 1)};
  EXPECT_THAT(Codes(cache.Load(blocks).blocks), ElementsAre(kNotFound, kNotFound));
  EXPECT_THAT(Codes(cache.LoadAsync(blocks).Result().blocks), ElementsAre(kNotFound, kNotFound));
  EXPECT_THAT(Codes(cache.LoadLayers(blocks).Result().blocks), ElementsAre(kNotFound, kNotFound));
  EXPECT_EQ(context_.stats().size_mismatches, 6u);
}

TEST_F(PagedCacheTest, BlocksOfAnotherOrderHaveOtherKeys) {
  PagedCache& cache = Cache();
  KeyDomain ours = cache.DomainFor({});
  for (KvLayer& layer : layers_) layer.tensors[0].order = KvOrder::kTokensFirst;
  const KeyDomain theirs = Cache().DomainFor({});
  EXPECT_NE(*EncodeDomain(ours), *EncodeDomain(theirs));
}

TEST_F(PagedCacheTest, ABadSlotFailsTheCallAndTouchesNothing) {
  PagedCache& cache = Cache();
  store_.Set("a", Bytes(0));
  PagedBlock beyond = Block("b", 1);
  beyond.runs[1] = {{255, 2}};
  const auto before = memory_.Copy();
  const std::vector blocks{Block("a", 0), beyond};
  const auto fails = Each(StatusCode::kOutOfRange);
  EXPECT_THAT(Codes(cache.Load(blocks).blocks), AllOf(fails, ::testing::SizeIs(2)));
  EXPECT_THAT(Codes(cache.LoadAsync(blocks).Result().blocks), fails);
  EXPECT_THAT(Codes(cache.LoadLayers(blocks).Result().blocks), fails);
  EXPECT_THAT(Codes(cache.Save(blocks, SavePhase::kPrefill).blocks), fails);
  EXPECT_THAT(Codes(cache.SaveAsync(blocks, SavePhase::kPrefill).Result().blocks), fails);
  EXPECT_EQ(memory_.Copy(), before);
  EXPECT_TRUE(store_.TakeCalls().empty());
  EXPECT_THAT(Codes(cache.Load(std::vector{Block("a", 0), Block("a", 0)}).blocks),
              Each(StatusCode::kInvalidArgument));
}

TEST_F(PagedCacheTest, EmptyListsAreFine) {
  PagedCache& cache = Cache();
  EXPECT_TRUE(cache.Load({}).blocks.empty());
  EXPECT_TRUE(cache.Save({}, SavePhase::kPrefill).blocks.empty());
  EXPECT_TRUE(cache.LoadAsync({}).Result().blocks.empty());
  EXPECT_TRUE(cache.SaveAsync({}, SavePhase::kPrefill).Result().blocks.empty());
  const LayerLoad load = cache.LoadLayers({});
  const auto ready = load.WaitLayer(kLayers - 1, Deadline::After(seconds(10)));
  ASSERT_TRUE(ready.ok());
  EXPECT_TRUE(ready->missing.empty());
}

TEST_F(PagedCacheTest, ARepeatedKeyFillsAllItsSlotsAndSavesItsFirst) {
  PagedCache& cache = Cache();
  const SaveResult saved =
      cache.Save(std::vector{Block("a", 0), Block("a", 1), Block("b", 2)}, SavePhase::kPrefill);
  EXPECT_THAT(Codes(saved.blocks), ElementsAre(kOk, kOk, kOk));
  EXPECT_EQ(saved.stored_blocks, 2u);
  EXPECT_EQ(saved.skipped_blocks, 1u);
  const std::string a = Bytes(0);
  EXPECT_EQ(store_.Get("a"), a);
  memory_.Clear();
  const std::vector twice{Block("a", 3), Block("a", 4)};
  EXPECT_THAT(Codes(cache.Load(twice).blocks), ElementsAre(kOk, kOk));
  EXPECT_EQ(Bytes(3), a);
  EXPECT_EQ(Bytes(4), a);
  memory_.Clear();
  EXPECT_THAT(Codes(cache.LoadLayers(twice).Result().blocks), ElementsAre(kOk, kOk));
  EXPECT_EQ(Bytes(3), a);
  EXPECT_EQ(Bytes(4), a);
  store_.FailPut("c", StatusCode::kUnavailable);
  EXPECT_THAT(
      Codes(cache.Save(std::vector{Block("c", 0), Block("c", 1)}, SavePhase::kPrefill).blocks),
      Each(StatusCode::kUnavailable));
}

TEST_F(PagedCacheTest, ThePolicyDecidesByPhase) {
  PagedCache& cache = Cache();
  const SaveResult skipped = cache.Save(std::vector{Block("a", 0)}, SavePhase::kDecode);
  EXPECT_THAT(Codes(skipped.blocks), ElementsAre(kOk));
  EXPECT_EQ(skipped.skipped_blocks, 1u);
  EXPECT_TRUE(store_.TakeCalls().empty());
  Cache({.policy = SavePolicy::kAll}).Save(std::vector{Block("a", 0)}, SavePhase::kDecode);
  EXPECT_EQ(store_.Get("a"), Bytes(0));
}

TEST_F(PagedCacheTest, RanksThatShareSaveTheirPartAndLoadAll) {
  const std::vector blocks{Block("0", 0), Block("1", 1), Block("2", 2), Block("3", 3),
                           Block("4", 4)};
  const auto stored = [&] {
    std::string keys;
    for (const PagedBlock& block : blocks)
      if (!store_.Get(block.key).empty()) keys += block.key;
    return keys;
  };
  for (uint32_t rank = 0; rank < 2; ++rank) {
    PagedCache& cache = Cache({.tp_rank = rank, .tp_size = 2, .shared_by_tp = true});
    const SaveResult saved = cache.Save(blocks, SavePhase::kPrefill);
    EXPECT_EQ(saved.stored_blocks, rank == 0 ? 3u : 2u);
    EXPECT_EQ(saved.skipped_blocks, rank == 0 ? 2u : 3u);
    EXPECT_EQ(stored(), rank == 0 ? "024" : "01234");
    EXPECT_EQ(cache.DomainFor({}).tp_rank, 0u);
  }
  EXPECT_EQ(cache_->Load(blocks).leading_blocks, 5u);
  PagedCache& apart = Cache({.tp_rank = 1, .tp_size = 2});
  EXPECT_EQ(apart.Save(std::vector{Block("x", 0)}, SavePhase::kPrefill).stored_blocks, 1u);
  EXPECT_EQ(apart.DomainFor({}).tp_rank, 1u);
  EXPECT_THAT(Codes(Cache({.tp_rank = 2, .tp_size = 2}).Save(blocks, SavePhase::kPrefill).blocks),
              Each(StatusCode::kInvalidArgument));
}

TEST_F(PagedCacheTest, AnAsyncLoadIsDoneWhenItsBytesAreThere) {
  PagedCache& cache = Cache();
  store_.Set("a", Bytes(0));
  const std::string a = Bytes(0);
  memory_.Clear();
  HoldBack("get");
  std::atomic<int> told{0};
  const LoadCall call = cache.LoadAsync({Block("a", 2), Block("b", 3)}, {}, [&] { ++told; });
  gate_.WaitForArrivals(1);
  EXPECT_FALSE(call.Done());
  EXPECT_FALSE(call.Wait(Deadline::After(milliseconds(1))));
  EXPECT_EQ(told, 0);
  gate_.Open(1);
  const auto& copy = LoadCall(call);
  EXPECT_THAT(Codes(copy.Result().blocks), ElementsAre(kOk, kNotFound));
  EXPECT_TRUE(call.Done());
  EXPECT_EQ(Bytes(2), a);
  call.Cancel();  // of no effect now
  EXPECT_THAT(Codes(call.Result().blocks), ElementsAre(kOk, kNotFound));
  cache_.reset();  // all is through, callbacks too
  EXPECT_EQ(told, 1);
}

TEST_F(PagedCacheTest, ACancelledCallThatHasNotBegunNeverTouchesTheTensors) {
  PagedCache& cache = Cache();
  store_.Set("a", Bytes(0));
  HoldBack("get");
  std::vector<LoadCall> calls;  // the store has two threads
  for (size_t i = 0; i < 3; ++i) calls.push_back(cache.LoadAsync({Block("a", i)}));
  gate_.WaitForArrivals(2);
  calls[2].Cancel();
  EXPECT_TRUE(calls[2].Done());
  EXPECT_THAT(Codes(calls[2].Result().blocks), ElementsAre(kCancelled));
  memory_.Clear();
  gate_.Open(100);
  EXPECT_THAT(Codes(calls[0].Result().blocks), ElementsAre(kOk));
  EXPECT_THAT(Codes(calls[1].Result().blocks), ElementsAre(kOk));
  cache_.reset();
  const auto slots = Slots(2);
  for (const KvLayer& layer : layers_)
    for (const KvTensor& tensor : layer.tensors)
      test::VisitHeads(tensor, slots, [](std::byte* data, uint64_t bytes) {
        for (uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], std::byte{0x5a});
      });
}

TEST_F(PagedCacheTest, CancelWaitsForTheBatchOnItsWayAndNoFurtherOneStarts) {
  ContextCache small(&store_, {.timeout = seconds(20), .batch = {.items_max = 1}});
  PagedCache cache(&small, &store_, *KvLayout::Make(layers_));
  for (const char* key : {"a", "b", "c"}) store_.Set(key, Bytes(0));
  HoldBack("get");
  const LoadCall call = cache.LoadAsync({Block("a", 0), Block("b", 1), Block("c", 2)});
  gate_.WaitForArrivals(1);
  std::atomic<bool> returned{false};
  Thread canceller("canceller", [&] {
    call.Cancel();
    returned = true;
  });
  // The canceller can only return behind the gate.
  EXPECT_FALSE(call.Wait(Deadline::After(milliseconds(20))));
  EXPECT_FALSE(returned);
  gate_.Open(1);
  canceller.Join();
  const auto codes = Codes(call.Result().blocks);
  EXPECT_EQ(codes[0], kOk);  // blocks go root-first by batch
  // The flag may have come too late for the second batch, but then the gate would have held it.
  EXPECT_THAT((std::vector{codes[1], codes[2]}), Each(kCancelled));
}

TEST_F(PagedCacheTest, ACallThatWaitsForAThreadIsOverWithItsDeadline) {
  PagedCache& cache = Cache();
  store_.Set("a", Bytes(0));
  HoldBack("get");
  const LoadCall first = cache.LoadAsync({Block("a", 0)}),
                 second = cache.LoadAsync({Block("a", 1)});
  gate_.WaitForArrivals(2);
  const LoadCall late = cache.LoadAsync({Block("a", 2)}, {.timeout = milliseconds(5)});
  EXPECT_THAT(Codes(late.Result().blocks), ElementsAre(StatusCode::kDeadlineExceeded));
  const LayerLoad layers = cache.LoadLayers({Block("a", 3)}, {.timeout = milliseconds(5)});
  const auto ready = layers.WaitLayer(0, Deadline::After(seconds(10)));
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_THAT(ready->missing, ElementsAre(0u));
  gate_.Open(100);
  EXPECT_EQ(first.Result().leading_blocks + second.Result().leading_blocks, 2u);
}

TEST_F(PagedCacheTest, AFullQueueIsToldAtOnce) {
  PagedCache& cache = Cache();
  store_.RefuseSubmissions();
  int told = 0;
  const SaveCall save = cache.SaveAsync({Block("a", 0)}, SavePhase::kPrefill, {}, [&] { ++told; });
  EXPECT_TRUE(save.Done());
  EXPECT_EQ(told, 1);
  EXPECT_THAT(Codes(save.Result().blocks), ElementsAre(StatusCode::kResourceExhausted));
  const auto ready = cache.LoadLayers({Block("a", 0)}).WaitLayer(0, Deadline::After(seconds(10)));
  ASSERT_TRUE(ready.ok());
  EXPECT_EQ(ready->leading_blocks, 0u);
}

TEST_F(PagedCacheTest, LayersArriveInOrderAndAreWholeWhenTheyAreReady) {
  PagedCache& cache = Cache({.layer_read_bytes = 1});  // each layer is a read of its own
  for (size_t i = 0; i < 3; ++i) store_.Set(std::to_string(i), Bytes(i));
  const auto expected = memory_.Copy();
  memory_.Clear();
  HoldBack("range");
  const LayerLoad load = cache.LoadLayers({Block("0", 0), Block("1", 1), Block("2", 2)});
  for (size_t layer = 0; layer < kLayers; ++layer) {
    gate_.WaitForArrivals(layer + 1);
    EXPECT_EQ(load.ready_layers(), layer);
    const Status early = load.WaitLayer(layer, Deadline::After(milliseconds(1))).status();
    EXPECT_EQ(early.code(), StatusCode::kDeadlineExceeded);
    gate_.Open(1);
    const auto ready = load.WaitLayer(layer, Deadline::After(seconds(10)));
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_EQ(ready->leading_blocks, 3u);
    const KvTensor& tensor = layers_[layer].tensors[0];
    for (size_t i = 0; i < 3; ++i)
      test::VisitHeads(tensor, Slots(i), [&](std::byte* data, uint64_t bytes) {
        const auto at = static_cast<size_t>(data - tensor.data);
        ASSERT_EQ(AsText({data, bytes}), expected[layer * 2].substr(at, bytes));
      });
  }
  const LoadResult result = load.Result();
  EXPECT_EQ(result.leading_blocks, 3u);
  EXPECT_EQ(*result.blocks[1], Bytes(1).size());
  EXPECT_EQ(context_.stats().loaded_blocks, 3u);
  EXPECT_EQ(load.WaitLayer(kLayers, Deadline::After(seconds(1))).status().code(),
            StatusCode::kOutOfRange);
}

TEST_F(PagedCacheTest, ABlockThatGoesWhileItsLayersAreReadIsMissingFromThereOn) {
  PagedCache& cache = Cache({.layer_read_bytes = 1});
  for (size_t i = 0; i < 2; ++i) store_.Set(std::to_string(i), Bytes(i));
  HoldBack("range");
  const LayerLoad load = cache.LoadLayers({Block("0", 0), Block("absent", 1), Block("1", 2)});
  gate_.Open(2);
  gate_.WaitForArrivals(3);
  store_.Erase("0");
  gate_.Open(100);
  const LoadResult result = load.Result();
  EXPECT_THAT(Codes(result.blocks), ElementsAre(kNotFound, kNotFound, kOk));
  const auto at = [&](size_t layer) { return *load.WaitLayer(layer, Deadline::After(seconds(9))); };
  EXPECT_THAT(at(1).missing, ElementsAre(1u));
  EXPECT_EQ(at(1).leading_blocks, 1u);
  EXPECT_THAT(at(2).missing, ElementsAre(0u, 1u));
  EXPECT_EQ(at(kLayers - 1).leading_blocks, 0u);
}

TEST_F(PagedCacheTest, ACancelledLayerLoadReadsNoFurtherLayer) {
  PagedCache& cache = Cache({.layer_read_bytes = 1});
  store_.Set("a", Bytes(0));
  HoldBack("range");
  const LayerLoad load = cache.LoadLayers({Block("a", 0)});
  gate_.WaitForArrivals(1);
  Thread canceller("canceller", [&] { load.Cancel(); });
  EXPECT_FALSE(load.Wait(Deadline::After(milliseconds(20))));
  gate_.Open(1);
  canceller.Join();
  EXPECT_TRUE(load.Done());
  EXPECT_THAT(Codes(load.Result().blocks), ElementsAre(kCancelled));
  const auto last = load.WaitLayer(kLayers - 1, Deadline::After(seconds(10)));
  ASSERT_TRUE(last.ok());
  EXPECT_THAT(last->missing, ElementsAre(0u));
}

}  // namespace
}  // namespace ems::context
