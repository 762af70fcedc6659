// What must hold: a call takes what its bytes need over the path and no less, calls share the path,
// what did not arrive in time is not said to have, and every other result is the store's own.
// Time is a clock that sleeping moves, so nothing here depends on how long anything takes.
#include "pdc/kv/paced_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/thread_pool.h"
#include "pdc/kv/prefix_cache.h"
#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc {
namespace {

using context::test::FakeBlockStore;
using fabric::EmulatedLink;
using fabric::EmulatedPath;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::SameBits;
using test::TinyConfig;

constexpr uint64_t kBytesPerSecond = 1'000'000;  // a byte is a microsecond
constexpr Duration kLatency = microseconds(300);
constexpr uint64_t kValueBytes = 10'000;
constexpr Duration kValueTime = milliseconds(10);

class PacedStoreTest : public ::testing::Test {
 protected:
  PacedStoreOptions Options() {
    PacedStoreOptions options;
    options.clock = &clock_;
    options.sleep = [this](TimePoint at) {
      if (on_sleep_) on_sleep_();
      if (at > clock_.Now()) clock_.Advance(at - clock_.Now());
    };
    return options;
  }
  Duration Elapsed() const { return clock_.Now() - begin_; }
  void Fill(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) below_.Set(key, std::string(kValueBytes, key[0]));
  }
  // Codes of a get of `keys`; `got` has the memory of each.
  std::vector<StatusCode> Get(const std::vector<std::string>& keys, Duration timeout = seconds(60),
                              uint64_t room = kValueBytes) {
    got_.assign(keys.size(), std::string(room, '\0'));
    std::vector<GetItem> items;
    for (size_t i = 0; i < keys.size(); ++i) {
      items.push_back(
          {.key = keys[i], .into = MutableBytes(std::as_writable_bytes(std::span(got_[i])))});
    }
    GetOptions options;
    options.timeout = timeout;
    std::vector<StatusCode> codes;
    for (const auto& result : store_.MultiGet(items, options))
      codes.push_back(result.status().code());
    return codes;
  }
  StatusCode Put(const std::string& key, const std::string& value, Duration timeout = seconds(60)) {
    const PutItem item{.key = key, .value = std::string_view(value)};
    PutOptions options;
    options.timeout = timeout;
    return store_.MultiPut({&item, 1}, options).at(0).code();
  }

  ManualClock clock_;
  const TimePoint begin_ = clock_.Now();
  std::function<void()> on_sleep_;
  FakeBlockStore below_;
  EmulatedLink in_{kBytesPerSecond}, out_{kBytesPerSecond};
  const EmulatedPath read_{{&in_}, kLatency}, write_{{&out_}, kLatency};
  PacedStore store_{&below_, {.read = &read_, .write = &write_}, Options()};
  std::vector<std::string> got_;
};

constexpr auto kOk = StatusCode::kOk;
constexpr auto kLate = StatusCode::kDeadlineExceeded;
using ::testing::ElementsAre;

TEST_F(PacedStoreTest, AGetTakesWhatItsBytesNeed) {
  Fill({"a", "b"});
  EXPECT_THAT(Get({"a", "b"}), ElementsAre(kOk, kOk));
  EXPECT_EQ(Elapsed(), 2 * kValueTime + kLatency) << "they follow each other without a gap";
  EXPECT_EQ(got_[0], std::string(kValueBytes, 'a'));
  EXPECT_EQ(got_[1], std::string(kValueBytes, 'b'));
  EXPECT_EQ(in_.bytes_carried(), 2 * kValueBytes);
  EXPECT_EQ(out_.bytes_carried(), 0U);
}

TEST_F(PacedStoreTest, ARangeTakesWhatItsBytesNeed) {
  Fill({"a"});
  std::string part(3000, '\0');
  const RangeItem item{
      .key = "a", .offset = 500, .into = MutableBytes(std::as_writable_bytes(std::span(part)))};
  GetOptions options;
  options.timeout = seconds(60);
  EXPECT_EQ(store_.MultiGetRange({&item, 1}, options).at(0), OkStatus());
  EXPECT_EQ(Elapsed(), milliseconds(3) + kLatency);
  options.timeout = milliseconds(3);
  EXPECT_EQ(store_.MultiGetRange({&item, 1}, options).at(0).code(), kLate) << "left, not arrived";
}

TEST_F(PacedStoreTest, APutTakesTheOtherPath) {
  EXPECT_EQ(Put("a", std::string(kValueBytes, 'x')), kOk);
  EXPECT_EQ(Elapsed(), kValueTime + kLatency);
  EXPECT_EQ(in_.bytes_carried(), 0U);
  EXPECT_EQ(out_.bytes_carried(), kValueBytes);
  EXPECT_EQ(below_.Get("a"), std::string(kValueBytes, 'x'));
  EXPECT_EQ(Put("b", std::string(kValueBytes, 'x'), kValueTime), kLate);
}

TEST_F(PacedStoreTest, WhatMovesNoBytesTakesNoTime) {
  Fill({"bad"});
  below_.FailKey("bad", StatusCode::kUnavailable);
  below_.Set("empty", "");
  EXPECT_THAT(Get({"none", "bad", "empty"}),
              ElementsAre(StatusCode::kNotFound, StatusCode::kUnavailable, kOk));
  const KeyItem there{.key = "empty"};
  EXPECT_EQ(*store_.MultiExists({&there, 1}, {}).at(0), true);
  EXPECT_EQ(Elapsed(), Duration(0));
}

TEST_F(PacedStoreTest, AValueShorterThanItsRoomTakesItsOwnTime) {
  Fill({"a"});
  EXPECT_THAT(Get({"a"}, seconds(60), 5 * kValueBytes), ElementsAre(kOk));
  EXPECT_EQ(Elapsed(), kValueTime + kLatency);
}

TEST_F(PacedStoreTest, TheRealCopyIsPartOfTheTime) {
  Fill({"a"});
  below_.SetGate([this](const std::string&) { clock_.Advance(milliseconds(4)); });
  EXPECT_THAT(Get({"a"}), ElementsAre(kOk));
  EXPECT_EQ(Elapsed(), kValueTime + kLatency) << "meanwhile, not before";
}

TEST_F(PacedStoreTest, AStoreSlowerThanThePathIsNotHeldUp) {
  Fill({"a"});
  below_.SetGate([this](const std::string&) { clock_.Advance(milliseconds(50)); });
  on_sleep_ = [] { ADD_FAILURE() << "nothing to wait for"; };
  EXPECT_THAT(Get({"a"}, milliseconds(40)), ElementsAre(kOk)) << "the path was ready in time";
  EXPECT_EQ(Elapsed(), milliseconds(50));
}

TEST_F(PacedStoreTest, WhatIsNotThroughInTimeIsNotOk) {
  Fill({"a", "b", "c", "d"});
  below_.FailKey("d", StatusCode::kDataLoss);
  EXPECT_THAT(Get({"a", "none", "b", "c", "d"}, milliseconds(25)),
              ElementsAre(kOk, StatusCode::kNotFound, kOk, kLate, StatusCode::kDataLoss));
  EXPECT_EQ(Elapsed(), milliseconds(25)) << "the call ends with its time";
}

TEST_F(PacedStoreTest, TheLastByteHasToArriveInTime) {
  Fill({"a", "b"});
  EXPECT_THAT(Get({"a", "b"}, 2 * kValueTime + kLatency - microseconds(1)),
              ElementsAre(kOk, kLate));
}

TEST_F(PacedStoreTest, ExactlyInTimeIsInTime) {
  Fill({"a", "b"});
  EXPECT_THAT(Get({"a", "b"}, 2 * kValueTime + kLatency), ElementsAre(kOk, kOk));
}

TEST_F(PacedStoreTest, ACallWithoutATimeHasTheClients) {
  below_.Set("large", std::string(2'000'000, 'x'));
  EXPECT_THAT(Get({"large"}, Duration(0), 2'000'000), ElementsAre(kLate));
  EXPECT_EQ(Elapsed(), milliseconds(1020)) << "a second and the bytes at 100 MB/s";
}

TEST_F(PacedStoreTest, TheStoreBelowHearsTheOptions) {
  Fill({"a"});
  Get({"a"}, seconds(7));
  const auto calls = below_.TakeCalls();
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].timeout, seconds(7));
  EXPECT_TRUE(calls[0].touch);
}

TEST_F(PacedStoreTest, CallsAtOnceShareThePath) {
  Fill({"a", "b"});
  // While the first call sleeps, which it does without a lock, another one comes and goes.
  on_sleep_ = [this] {
    on_sleep_ = nullptr;
    const std::vector<std::string> first = got_;
    EXPECT_THAT(Get({"b"}), ElementsAre(kOk));
    EXPECT_GT(Elapsed(), kValueTime + kLatency) << "a piece of the first was before";
    got_ = first;
  };
  EXPECT_THAT(Get({"a"}), ElementsAre(kOk));
  EXPECT_EQ(Elapsed(), 2 * kValueTime + kLatency) << "two values over one link, without a gap";
}

TEST_F(PacedStoreTest, ReadsAndWritesDoNotMeetOnDifferentLinks) {
  Fill({"a"});
  on_sleep_ = [this] {
    on_sleep_ = nullptr;
    EXPECT_EQ(Put("b", std::string(kValueBytes, 'b')), kOk);
  };
  EXPECT_THAT(Get({"a"}), ElementsAre(kOk));
  EXPECT_EQ(Elapsed(), kValueTime + kLatency);
}

TEST_F(PacedStoreTest, WithoutPathsNothingIsPaced) {
  Fill({"a"});
  PacedStore bare(&below_, {}, Options());
  std::string room(kValueBytes, '\0');
  const GetItem item{.key = "a", .into = MutableBytes(std::as_writable_bytes(std::span(room)))};
  const PutItem put{.key = "b", .value = std::string_view(room)};
  EXPECT_EQ(*bare.MultiGet({&item, 1}, {}).at(0), kValueBytes);
  EXPECT_EQ(bare.MultiPut({&put, 1}, {}).at(0), OkStatus());
  EXPECT_EQ(Elapsed(), Duration(0));
}

TEST_F(PacedStoreTest, SubmitPassesThrough) {
  StopFlag ran;
  ASSERT_TRUE(store_.Submit([&ran] { ran.Set(); }));
  EXPECT_TRUE(ran.WaitFor(seconds(20)));
  below_.RefuseSubmissions();
  EXPECT_FALSE(store_.Submit([] {}));
}

// On the machine's own clock, with a path that is faster than anything here.
TEST_F(PacedStoreTest, CallsOfManyThreadsGetTheirOwnBytes) {
  EmulatedLink fast(100'000'000'000);
  const EmulatedPath path({&fast}, Duration(100));
  PacedStore store(&below_, {.read = &path, .write = &path});
  constexpr int kThreads = 4, kCalls = 50;
  {
    std::vector<Thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("paced", [&store, t] {
        for (int call = 0; call < kCalls; ++call) {
          const std::string key = fmt::format("{}/{}", t, call);
          const std::string value(kValueBytes, static_cast<char>(t * kCalls + call));
          const PutItem put{.key = key, .value = std::string_view(value)};
          PutOptions put_options;
          put_options.timeout = seconds(60);
          EXPECT_EQ(store.MultiPut({&put, 1}, put_options).at(0), OkStatus());
          std::string room(kValueBytes, '\0');
          const GetItem get{.key = key,
                            .into = MutableBytes(std::as_writable_bytes(std::span(room)))};
          GetOptions get_options;
          get_options.timeout = seconds(60);
          EXPECT_TRUE(store.MultiGet({&get, 1}, get_options).at(0).ok());
          EXPECT_EQ(room, value);
        }
      });
    }
  }
  EXPECT_EQ(fast.bytes_carried(), uint64_t{2} * kThreads * kCalls * kValueBytes);
}

// A worker's KV, with the pool behind a path.
class PacedPrefixTest : public PacedStoreTest {
 protected:
  static constexpr uint32_t kPage = 16;
  static PrefixCacheOptions Patient() { return {.timeout = seconds(30)}; }
  // Computes the prompt on one worker, saves it through `saver`, loads it on another one through
  // `loader`. How many tokens that one found.
  uint32_t Serve(context::BlockStore* saver, context::BlockStore* loader) {
    const std::vector<TokenId> prompt = RandomTokens(100, 1);
    const auto one = *PrefixCache::Create(saver, first_.arena.get(), *first_.model, Patient());
    KvSequence computed(first_.arena.get());
    const auto wanted = first_.Compute(&computed, prompt, LogitsOf::kLast);
    one->Save(prompt, "", computed, 0, context::SavePhase::kPrefill);
    EXPECT_TRUE(one->Drain(seconds(60)));
    failed_saves_ = one->stats().failed_blocks;

    const auto two = *PrefixCache::Create(loader, second_.arena.get(), *second_.model, Patient());
    KvSequence loaded(second_.arena.get());
    const auto hit = two->Load(prompt, "", &loaded);
    EXPECT_TRUE(hit.ok()) << hit.status();
    const uint32_t cached = hit->cached_tokens;
    KvSequence same(first_.arena.get());
    if (cached > 0) first_.Compute(&same, std::span(prompt).first(cached), LogitsOf::kNone);
    EXPECT_EQ(second_.KvBytes(loaded), first_.KvBytes(same)) << "to the byte";
    const auto logits =
        second_.Compute(&loaded, std::span(prompt).subspan(cached), LogitsOf::kLast);
    EXPECT_TRUE(SameBits(logits.logits, wanted.logits));
    return cached;
  }

  EngineRig first_{TinyConfig(), {.block_tokens = kPage}};
  EngineRig second_{first_.model, {.block_tokens = kPage}};
  uint64_t failed_saves_ = 0;
};

TEST_F(PacedPrefixTest, KvIsTheSameToTheByte) {
  EmulatedLink fast(100'000'000'000);
  const EmulatedPath path({&fast}, microseconds(1));
  PacedStore paced(&below_, {.read = &path, .write = &path}, Options());
  EXPECT_EQ(Serve(&paced, &paced), 96U);
  const uint64_t blocks = uint64_t{6} * first_.arena->block_bytes();
  EXPECT_EQ(fast.bytes_carried(), 2 * blocks);
  EXPECT_GE(Elapsed(), 2 * path.TimeOf(blocks));
  EXPECT_EQ(failed_saves_, 0U);
}

TEST_F(PacedPrefixTest, KvThatDoesNotArriveInTimeIsComputed) {
  EmulatedLink slow(1);
  const EmulatedPath path({&slow}, seconds(1));
  PacedStore paced(&below_, {.read = &path}, Options());
  EXPECT_EQ(Serve(&below_, &paced), 0U);
  EXPECT_GT(Elapsed(), seconds(1)) << "it was asked for";
}

TEST_F(PacedPrefixTest, ASaveThatIsNotThroughInTimeFailed) {
  EmulatedLink slow(1);
  const EmulatedPath path({&slow}, seconds(1));
  PacedStore paced(&below_, {.write = &path}, Options());
  EXPECT_EQ(Serve(&paced, &below_), 96U) << "the pool has them all the same";
  EXPECT_EQ(failed_saves_, 6U);
}

TEST(PathsToPoolTest, TheDieReadsAndWritesTheFirstCpu) {
  using fabric::Endpoint;
  using fabric::Plane;
  fabric::EmulatedFabric fabric{fabric::EmulatedTopology()};
  const Endpoint die = Endpoint::Die(1, 0, 0);
  const auto ub = PathsToPool(&fabric, die, Plane::kUb);
  ASSERT_TRUE(ub.ok()) << ub.status();
  EXPECT_EQ(ub->read->bytes_per_s(), 147'000'000'000U);
  EXPECT_EQ(ub->write->bytes_per_s(), 107'000'000'000U);
  const auto vpc = PathsToPool(&fabric, die, Plane::kVpc);
  ASSERT_TRUE(vpc.ok()) << vpc.status();
  EXPECT_EQ(vpc->read->bytes_per_s(), 50'000'000'000U) << "of the nodes' cards";
  for (const Plane plane : {Plane::kRdma, Plane::kEvs, Plane::kObs})
    EXPECT_EQ(PathsToPool(&fabric, die, plane).status().code(), StatusCode::kInvalidArgument)
        << fabric::PlaneName(plane);
  EXPECT_EQ(PathsToPool(&fabric, Endpoint::Die(99, 0, 0), Plane::kUb).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
