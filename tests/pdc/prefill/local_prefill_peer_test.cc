#include "pdc/prefill/local_prefill_peer.h"

#include <gtest/gtest.h>

#include "pdc/kv/kv_handoff.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};

TEST(LocalPrefillPeerTest, ItsHealthIsThatOfTheWorkerAndItsLinkWorks) {
  EngineRig decode(TinyConfig());
  std::vector<std::byte> memory(KvArena::BlockBytes(decode.model->config(), kKv) * 64);
  const auto worker = PrefillWorker::Create(decode.model, memory, nullptr, {.kv = kKv});
  ASSERT_TRUE(worker.ok());
  auto peer = LocalPrefillPeer::Create("p", worker->get(), {});
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->name(), "p");
  EXPECT_EQ((*peer)->health().status, OkStatus());
  EXPECT_EQ((*peer)->health().queued_cost, 0);

  KvSequence kv(decode.arena.get());
  const auto arrival = KvArrival::Post((*peer)->ring().get(), 1, &kv, 30);
  ASSERT_TRUE(arrival.ok());
  Guarded<Status> sent(std::in_place, Error(StatusCode::kInternal, "no event"));
  StopFlag over;
  ASSERT_EQ((*peer)->Start({.id = 1, .prompt = RandomTokens(30, 1)},
                           {.on_done = [](const Result<PrefillOutcome>& o) { EXPECT_TRUE(o.ok()); },
                            .on_sent =
                                [&](Status how) {
                                  {
                                    auto locked = sent.Lock();
                                    *locked = std::move(how);
                                  }
                                  over.Set();
                                }}),
            OkStatus());
  EXPECT_TRUE(*(*arrival)->Poll(seconds(10)));
  ASSERT_TRUE(over.WaitFor(seconds(10)));
  auto locked = sent.Lock();
  EXPECT_EQ(*locked, OkStatus());
}

TEST(LocalPrefillPeerTest, AWorkerThatStandsStillWithWorkIsSick) {
  EngineRig decode(TinyConfig());
  std::vector<std::byte> memory(KvArena::BlockBytes(decode.model->config(), kKv) * 500);
  const auto worker = PrefillWorker::Create(decode.model, memory, nullptr, {.kv = kKv});
  ASSERT_TRUE(worker.ok());
  auto peer = LocalPrefillPeer::Create("p", worker->get(), {.stall_limit = Duration(1)});
  ASSERT_TRUE(peer.ok());
  // A step of thousands of tokens takes longer than the nanosecond that is allowed.
  ASSERT_EQ((*peer)->Start(
                {.id = 1, .prompt = RandomTokens(6000, 1)},
                {.on_done = [](const Result<PrefillOutcome>&) {}, .on_sent = [](const Status&) {}}),
            OkStatus());
  Status health;
  EXPECT_TRUE(ems::testing::Eventually([&] {
    health = (*peer)->health().status;
    return !health.ok();
  }));
  EXPECT_EQ(health.code(), StatusCode::kUnavailable);
  EXPECT_NE(health.message().find("not moved"), std::string::npos) << health;
  (*peer)->Cancel(1);
}

}  // namespace
}  // namespace ems::pdc
