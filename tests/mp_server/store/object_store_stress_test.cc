// Four threads put, get, overwrite and remove values that verify themselves, in two namespaces on a
// pool a tenth of the working set, with pins held for a while. Afterwards nothing may be left over.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <random>

#include "common/thread_pool.h"
#include "mp_server/store/evictor.h"
#include "mp_server/store/object_store.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using testing::FillValue;
using testing::VerifyValue;

constexpr uint64_t kPool = 32 * kMiB;
constexpr int kKeys = 2000;
constexpr int kThreads = 4;
constexpr Duration kRunFor = std::chrono::milliseconds(1500);

struct Tally {
  std::atomic<uint64_t> puts{0}, hits{0}, misses{0}, wrong{0}, refused{0}, failed{0};
};

// Sizes of all granularities; most are small.
uint64_t SizeOf(std::mt19937& random) {
  const uint64_t dice = random() % 100;
  if (dice < 60) return 8 + random() % 60000;
  if (dice < 95) return 60000 + random() % 300000;
  return 300000 + random() % (3 * kMiB);
}

class Worker final {
 public:
  Worker(ObjectStore* store, uint32_t seed, uint64_t first_put_id, Tally* tally)
      : store_(store), random_(seed), put_id_(first_put_id), tally_(tally) {}

  void Step() {
    const auto id = static_cast<uint32_t>(1 + random_() % 2);
    const NamespaceRef ns{NamespaceId(id), 1};
    const std::string name = "ns" + std::to_string(id);
    const uint64_t number = random_() % kKeys;
    const std::string key = "key" + std::to_string(number);
    switch (random_() % 10) {
      case 0:
        store_->Remove(ns, key);
        break;
      case 1:
      case 2:
      case 3:
        Put(ns, name, key, static_cast<uint16_t>(number % kSlotCount), random_() % 2 == 0);
        break;
      default:
        Get(ns, name, key);
        break;
    }
  }

 private:
  void Put(NamespaceRef ns, const std::string& name, const std::string& key, uint16_t slot,
           bool overwrite) {
    auto room = store_->Reserve(ns, SlotId(slot), key, SizeOf(random_));
    if (!room.ok()) {
      (room.status().code() == StatusCode::kResourceExhausted ? tally_->refused : tally_->failed)
          .fetch_add(1);
      return;
    }
    FillValue(name, key, put_id_++, room->value());
    PieceHasher hasher;
    hasher.Start(room->piece_sums());
    hasher.Update(room->value());
    const uint64_t checksum = hasher.Finish();
    if (random_() % 20 == 0) return;  // the connection died: the reservation goes
    bool stored = false;
    const Status put =
        store_->Publish(std::move(*room), checksum, {.overwrite = overwrite}, &stored);
    if (!put.ok() && put.code() != StatusCode::kAlreadyExists) tally_->failed.fetch_add(1);
    tally_->puts.fetch_add(stored ? 1 : 0);
  }

  void Get(NamespaceRef ns, const std::string& name, const std::string& key) {
    ObjectPin pin = store_->Get(ns, key, true);
    if (!pin) {
      tally_->misses.fetch_add(1);
      return;
    }
    tally_->hits.fetch_add(1);
    Check(pin, name, key);
    if (random_() % 8 == 0) held_.push_back({std::move(pin), name, key});
    if (held_.size() <= 8) return;
    Check(held_.front().pin, held_.front().name, held_.front().key);  // still the same bytes
    held_.pop_front();
  }

  void Check(const ObjectPin& pin, const std::string& name, const std::string& key) {
    if (pin.value().size() > 400000 && random_() % 8 != 0) return;
    if (!VerifyValue(name, key, AsText(pin.value())) ||
        CombinePieces(pin.piece_sums()) != pin.checksum())
      tally_->wrong.fetch_add(1);
  }

  struct Held {
    ObjectPin pin;
    std::string name;
    std::string key;
  };
  ObjectStore* store_;
  std::mt19937 random_;
  uint64_t put_id_;
  Tally* tally_;
  std::deque<Held> held_;
};

NamespaceTable TwoNamespaces() {
  NamespaceTable table;
  for (uint32_t id = 1; id <= 2; ++id) {
    NamespaceInfo info;
    info.ref = {NamespaceId(id), 1};
    info.name = "ns" + std::to_string(id);
    info.dram_quota_bytes = id == 1 ? 12 * kMiB : 0;
    info.dram_reserved_bytes = id == 1 ? 4 * kMiB : 0;
    table.by_id[info.ref.id] = info;
  }
  return table;
}

TEST(ObjectStoreStressTest, BytesAreRightAndNothingIsLeftOver) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  SegmentPool pool(SmallPool(kPool, 4 * kMiB));
  ASSERT_TRUE(pool.WaitReady(kPool, Soon()).ok());
  ObjectStore store({.pool = &pool});
  store.SetOwnedSlots(AllSlots());
  store.SetNamespaces(TwoNamespaces(), 1);
  Tally tally;
  {
    Evictor evictor(&store, std::chrono::milliseconds(10));
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads.emplace_back("stress-" + std::to_string(i), [&, i] {
        Worker worker(&store, seed + i, uint64_t{i + 1} << 40, &tally);
        const Deadline end = Deadline::After(kRunFor);
        while (!end.Passed()) worker.Step();
      });
    }
    // Meanwhile slots come and go.
    const Deadline end = Deadline::After(kRunFor);
    while (!end.Passed()) {
      auto some = AllSlots();
      some.reset(17);
      store.SetOwnedSlots(some);
      store.SetOwnedSlots(AllSlots());
      std::this_thread::yield();
    }
  }
  std::printf("puts %lu hits %lu misses %lu refused %lu\n", tally.puts.load(), tally.hits.load(),
              tally.misses.load(), tally.refused.load());
  EXPECT_EQ(tally.wrong.load(), 0u);
  EXPECT_GT(tally.puts.load(), 50u);
  EXPECT_GT(tally.hits.load(), 50u);
  for (const NamespaceUsage& usage : store.Usage()) {
    EXPECT_EQ(usage.pinned_objects, 0u);
    if (usage.quota_bytes != 0) {
      EXPECT_LE(usage.value_bytes, usage.quota_bytes);
    }
    uint64_t sum = 0, count = 0;
    for (int i = 0; i < kKeys; ++i) {
      const auto found = store.Find(usage.ref, "key" + std::to_string(i), false);
      sum += found ? found->value_bytes : 0;
      count += found ? 1 : 0;
    }
    EXPECT_EQ(usage.value_bytes, sum) << "charged is not what the index holds";
    EXPECT_EQ(usage.objects, count);
  }
  store.SetNamespaces({}, 1);
  EXPECT_EQ(pool.stats().bytes_in_use, 0u) << "memory of deleted namespaces is not back";
}

}  // namespace
}  // namespace ems::server
