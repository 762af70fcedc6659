// What must hold: of eight models where six have room, versions go whole. What is read from the
// source when instances switch between them is no more than a cache of whole versions would read,
// and less than with blocks that go one by one; at most one version is neither whole nor gone.
#include <gtest/gtest.h>

#include <list>
#include <random>
#include <set>
#include <vector>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kModels = 8, kRoom = 6, kBlocks = 24;
constexpr uint64_t kBlockBytes = 60'000;
constexpr double kBelowBlocks = 0.9;  // of what is read with blocks that go one by one

enum class Reads : uint8_t { kWhole, kSlices };

// A switch: all of the model's blocks, or, of an engine that is one of several ranks, every second.
struct Switch {
  uint32_t model = 0;
  Reads reads = Reads::kWhole;
};

// Six models in use, each visited at random, by whole or by slice, and now and then one of the
// other two.
std::vector<Switch> Pattern(size_t switches) {
  std::mt19937_64 random(7);
  std::vector<Switch> pattern;
  for (size_t i = 0; i < switches; ++i) {
    const bool other = i % 5 == 4;
    const auto model =
        static_cast<uint32_t>(other ? kRoom + random() % (kModels - kRoom) : random() % kRoom);
    pattern.push_back({model, random() % 3 == 0 ? Reads::kSlices : Reads::kWhole});
  }
  return pattern;
}

// Blocks read by a cache that keeps the six whole versions that were used last.
uint64_t IdealReads(const std::vector<Switch>& pattern) {
  std::list<uint32_t> kept;
  uint64_t reads = 0;
  for (const Switch& one : pattern) {
    const auto found = std::ranges::find(kept, one.model);
    if (found == kept.end())
      reads += kBlocks;
    else
      kept.erase(found);
    kept.push_front(one.model);
    if (kept.size() > kRoom) kept.pop_back();
  }
  return reads;
}

class VersionSwitchTest : public NamespaceFixture {
 protected:
  static std::string Key(uint32_t model, uint32_t block) {
    return fmt::format("sha256-of-model-{}-block-{}", model, block);
  }
  bool IsHere(uint32_t model, uint32_t block) {
    return store_->Find(Key(model, block), false).has_value();
  }
  // What a job does with one block: looks for it, and reads it from the source if it is missing.
  // Returns how many were read.
  uint64_t Bring(uint32_t model, uint32_t block, bool by_version) {
    clock_.Advance(milliseconds(1));
    const std::string key = Key(model, block);
    if (by_version) store_->objects().UseVersion(model + 1);
    const bool missing = !store_->Get(key, true);
    if (missing) {
      EXPECT_EQ(Put(*store_, key, std::string(kBlockBytes, 'w')), OkStatus());
    }
    if (by_version) store_->objects().JoinVersion(key, model + 1);
    return missing ? 1 : 0;
  }
  void Read(const Switch& one) {
    const uint32_t step = one.reads == Reads::kSlices ? 2 : 1;
    for (uint32_t block = 0; block < kBlocks; block += step) {
      clock_.Advance(milliseconds(1));
      (void)store_->Get(Key(one.model, block), true);
    }
  }
  // A switch as servers see it: a job (`emsctl model prefetch`) brings the version in, then the
  // engine reads what it wants.
  uint64_t Load(const Switch& one, bool by_version) {
    uint64_t reads = 0;
    for (uint32_t block = 0; block < kBlocks; ++block) reads += Bring(one.model, block, by_version);
    Read(one);
    return reads;
  }
  struct Outcome {
    uint64_t reads = 0;
    uint64_t partial = 0;  // versions that were neither whole nor gone, after each switch
  };
  uint64_t Partial() {
    uint64_t partial = 0;
    for (uint32_t model = 0; model < kModels; ++model) {
      uint32_t here = 0;
      for (uint32_t block = 0; block < kBlocks; ++block) here += IsHere(model, block) ? 1 : 0;
      partial += here > 0 && here < kBlocks ? 1 : 0;
    }
    return partial;
  }
  // Room for six and a third of one more, by quota: to the byte.
  void MakeRoomForSix() { Make(32 * kMiB, (kRoom * kBlocks + kBlocks / 3) * kBlockBytes); }
  Outcome Run(const std::vector<Switch>& pattern, bool by_version) {
    MakeRoomForSix();
    Outcome outcome;
    for (const Switch& one : pattern) {
      outcome.reads += Load(one, by_version);
      outcome.partial += Partial();
      const NamespaceUsage usage = store_->Usage();
      EXPECT_LE(usage.value_bytes, usage.quota_bytes);
    }
    return outcome;
  }
  // Two instances at a time, whose blocks come and are read in turn.
  Outcome RunPairs(const std::vector<Switch>& pattern, bool by_version) {
    MakeRoomForSix();
    Outcome outcome;
    for (size_t i = 0; i + 1 < pattern.size(); i += 2) {
      for (uint32_t block = 0; block < kBlocks; ++block) {
        outcome.reads += Bring(pattern[i].model, block, by_version);
        outcome.reads += Bring(pattern[i + 1].model, block, by_version);
      }
      outcome.partial += Partial();
    }
    return outcome;
  }
  static void Print(std::string_view what, size_t switches, uint64_t ideal, const Outcome& version,
                    const Outcome& block) {
    fmt::print(
        "{}: blocks read in {} switches: ideal {}, by version {}, by block {}; versions "
        "neither whole nor gone: {} and {}\n",
        what, switches, ideal, version.reads, block.reads, version.partial, block.partial);
  }
};

TEST_F(VersionSwitchTest, EightModelsWithRoomForSixAreReadAsWholeVersionsWouldBe) {
  const std::vector<Switch> pattern = Pattern(400);
  const uint64_t ideal = IdealReads(pattern);
  const Outcome by_version = Run(pattern, true), by_block = Run(pattern, false);
  Print("one by one", pattern.size(), ideal, by_version, by_block);
  EXPECT_LE(by_version.reads, ideal);
  EXPECT_LE(static_cast<double>(by_version.reads),
            kBelowBlocks * static_cast<double>(by_block.reads));
  EXPECT_LE(by_version.partial, pattern.size()) << "one at a time, the next to go";
}

TEST_F(VersionSwitchTest, TwoAtATimeLeaveNoMorePiecesOfVersionsThanOne) {
  const std::vector<Switch> pattern = Pattern(400);
  const uint64_t ideal = IdealReads(pattern);
  const Outcome by_version = RunPairs(pattern, true), by_block = RunPairs(pattern, false);
  Print("two at a time", pattern.size(), ideal, by_version, by_block);
  EXPECT_LE(by_version.reads, ideal);
  EXPECT_LT(by_version.reads, by_block.reads);
  EXPECT_LE(by_version.partial, pattern.size() / 2) << "one at a time, the next to go";
  EXPECT_LT(by_version.partial, by_block.partial);
}

TEST_F(VersionSwitchTest, WhatAVersionStillHasIsNotEvictedToBringInItsRest) {
  Make(32 * kMiB, uint64_t{kRoom} * kBlocks * kBlockBytes);
  for (uint32_t model = 0; model < kRoom; ++model) (void)Load({model}, true);
  EXPECT_EQ(Put(*store_, "one more", std::string(kBlockBytes, 'x')), OkStatus());
  EXPECT_EQ(Load({0}, true), 1U) << "the block that made room, and not all after it";
}

TEST_F(VersionSwitchTest, AVersionThatIsRemovedMakesRoomFirst) {
  Make(32 * kMiB, uint64_t{kRoom} * kBlocks * kBlockBytes);
  for (uint32_t model = 0; model < kRoom; ++model) (void)Load({model}, true);
  store_->objects().ForgetVersion(kRoom);  // the last one that was loaded
  (void)Load({kRoom}, true);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_FALSE(IsHere(kRoom - 1, block));
    EXPECT_TRUE(IsHere(0, block));
  }
}

TEST_F(VersionSwitchTest, APinnedVersionIsPassedOver) {
  Make(32 * kMiB, uint64_t{kRoom} * kBlocks * kBlockBytes);
  for (uint32_t model = 0; model < kRoom; ++model) (void)Load({model}, true);
  std::vector<ObjectPin> pins;
  for (uint32_t block = 0; block < kBlocks; ++block)
    pins.push_back(store_->Get(Key(0, block), false));
  for (uint32_t model = kRoom; model < kModels; ++model) EXPECT_EQ(Load({model}, true), kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_TRUE(IsHere(0, block));
    EXPECT_FALSE(IsHere(1, block));
    EXPECT_FALSE(IsHere(2, block));
    EXPECT_TRUE(IsHere(3, block));
  }
}

}  // namespace
}  // namespace ems::server
