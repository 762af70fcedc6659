// What must hold: the piece is the device's own memory, goes back when its holder goes, once; KV
// computed and loaded there is the KV of any other memory.
#include "pdc/hbm.h"

#include <gtest/gtest.h>

#include <string>

#include "pdc/prefix_cache.h"
#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc {
namespace {

using fabric::NpuDevice;
using fabric::NpuStream;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::SameBits;
using test::TinyConfig;

std::unique_ptr<NpuDevice> Device(uint64_t bytes) {
  return *NpuDevice::Create({.hbm_bytes = bytes});
}

TEST(HbmTest, GoesBackWhenItsHolderGoes) {
  const auto device = Device(kMiB);
  {
    const auto all = Hbm::Take(device.get(), kMiB);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(all->memory().size(), kMiB);
    EXPECT_EQ(device->free_bytes(), 0U);
    EXPECT_EQ(Hbm::Take(device.get(), 1).status().code(), StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(device->free_bytes(), kMiB);
  EXPECT_EQ(Hbm::Take(device.get(), 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(HbmTest, MovesWithItsMemory) {
  const auto device = Device(kMiB);
  Hbm one = *Hbm::Take(device.get(), 512 * kKiB);
  const std::byte* const at = one.memory().data();
  Hbm two = std::move(one);
  EXPECT_EQ(two.memory().data(), at);
  EXPECT_EQ(device->free_bytes(), 512 * kKiB) << "held once";
  two = *Hbm::Take(device.get(), 256 * kKiB);
  EXPECT_EQ(two.memory().size(), 256 * kKiB);
  EXPECT_EQ(device->free_bytes(), 768 * kKiB) << "what it held before went back";
}

TEST(HbmTest, IsWhatStreamsCopy) {
  const auto device = Device(kMiB);
  const Hbm hbm = *Hbm::Take(device.get(), 4096);
  std::fill(hbm.memory().begin(), hbm.memory().end(), std::byte{0x5C});
  std::string out(4096, '\0');
  NpuStream stream(device.get());
  ASSERT_TRUE(stream.CopyOut(std::as_writable_bytes(std::span(out)), hbm.address()).ok());
  ASSERT_TRUE(stream.Synchronize(seconds(20)));
  EXPECT_EQ(out, std::string(4096, '\x5C'));
}

TEST(HbmTest, KvInItIsTheKvOfAnyMemory) {
  constexpr KvOptions kKv{.block_tokens = 16};
  EngineRig rig(TinyConfig(), kKv);
  const auto device = Device(4 * kMiB);
  const Hbm hbm = *Hbm::Take(device.get(), KvArena::BlockBytes(TinyConfig(), kKv) * 8);
  const auto arena = *KvArena::Create(TinyConfig(), kKv, hbm.memory());
  context::test::FakeBlockStore store;
  const auto saver = *PrefixCache::Create(&store, rig.arena.get(), *rig.model, {});
  const auto loader =
      *PrefixCache::Create(&store, arena.get(), *rig.model, {.timeout = seconds(30)});

  const std::vector<TokenId> prompt = RandomTokens(75, 1);
  KvSequence computed(rig.arena.get()), loaded(arena.get());
  const auto wanted = rig.Compute(&computed, prompt, LogitsOf::kLast);
  saver->Save(prompt, "", computed, 0, context::SavePhase::kPrefill);
  ASSERT_TRUE(saver->Drain(seconds(30)));
  const auto hit = loader->Load(prompt, "", &loaded);
  ASSERT_TRUE(hit.ok()) << hit.status();
  ASSERT_EQ(hit->cached_tokens, 64U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(AsText(arena->block(loaded.blocks()[i])),
              AsText(rig.arena->block(computed.blocks()[i])))
        << i;
  }
  EXPECT_TRUE(SameBits(rig.Compute(&loaded, std::span(prompt).subspan(64), LogitsOf::kLast).logits,
                       wanted.logits));
}

}  // namespace
}  // namespace ems::pdc
