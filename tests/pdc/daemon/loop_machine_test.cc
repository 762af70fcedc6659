// What must hold: each worker has HBM of its own; KV passes the planes that the configuration
// names, and no others.
#include "pdc/daemon/loop_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/daemon/loop_testing.h"

namespace ems::pdc {
namespace {

using context::test::FakeBlockStore;
using test::TinyLoop;

std::unique_ptr<LoopMachine> Make(const std::vector<std::string>& more, uint32_t prefills,
                                  uint32_t decodes, context::BlockStore* pool) {
  auto machine = LoopMachine::Create(TinyLoop(more), prefills, decodes, pool);
  EXPECT_TRUE(machine.ok()) << machine.status();
  return machine.ok() ? *std::move(machine) : nullptr;
}

TEST(LoopMachineTest, EachWorkerHasMemoryOfItsOwn) {
  const auto machine = Make({"kv.bytes=70000"}, 2, 1, nullptr);
  ASSERT_NE(machine, nullptr);
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(machine->memory(i).size(), 72U * kKiB) << "whole pages";
    std::memset(machine->memory(i).data(), static_cast<int>(i + 1), machine->memory(i).size());
  }
  for (uint32_t i = 0; i < 3; ++i) {
    const MutableBytes memory = machine->memory(i);
    EXPECT_TRUE(std::all_of(memory.begin(), memory.end(),
                            [&](std::byte one) { return one == std::byte(i + 1); }));
  }
}

TEST(LoopMachineTest, WithoutPlanesNothingIsPaced) {
  FakeBlockStore pool;
  const auto machine = Make({}, 1, 1, &pool);
  ASSERT_NE(machine, nullptr);
  EXPECT_EQ(machine->store(0), &pool);
  EXPECT_EQ(machine->store(1), &pool);
  EXPECT_EQ(machine->HandoffPath(0, 0), nullptr);
  EXPECT_EQ(Make({}, 1, 1, nullptr)->store(0), nullptr);
}

TEST(LoopMachineTest, APoolPlaneIsBetweenEachWorkerAndThePool) {
  FakeBlockStore pool;
  for (const char* plane : {"pool.plane=ub", "pool.plane=vpc"}) {
    const auto machine = Make({plane}, 2, 1, &pool);
    ASSERT_NE(machine, nullptr);
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_NE(machine->store(i), nullptr);
      EXPECT_NE(machine->store(i), &pool);
    }
    EXPECT_NE(machine->store(0), machine->store(1));
    EXPECT_EQ(machine->HandoffPath(0, 0), nullptr);
    EXPECT_EQ(Make({plane}, 1, 1, nullptr)->store(0), nullptr) << "no pool, no plane to it";
  }
}

TEST(LoopMachineTest, AKvPlaneIsBetweenEachPrefillAndEachDecodeWorker) {
  const auto machine = Make({"kv.plane=rdma"}, 2, 3, nullptr);
  const auto slower = Make({"kv.plane=rdma", "kv.plane_scale=10"}, 2, 3, nullptr);
  ASSERT_NE(machine, nullptr);
  ASSERT_NE(slower, nullptr);
  for (uint32_t i = 0; i < 2; ++i) {
    for (uint32_t j = 0; j < 3; ++j) {
      ASSERT_NE(machine->HandoffPath(i, j), nullptr);
      const double times = static_cast<double>(machine->HandoffPath(i, j)->bytes_per_s()) /
                           static_cast<double>(slower->HandoffPath(i, j)->bytes_per_s());
      EXPECT_NEAR(times, 10, 0.01);
    }
  }
  // A prefill process does not know of its decode workers' dies: one stands for them.
  EXPECT_NE(Make({"kv.plane=rdma"}, 1, 0, nullptr)->HandoffPath(0, 0), nullptr);
}

TEST(LoopMachineTest, MoreWorkersThanDiesAreRefused) {
  const auto config = TinyLoop({"kv.bytes=65536", "kv.plane=rdma"});
  EXPECT_EQ(LoopMachine::Create(config, 800, 1, nullptr).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
