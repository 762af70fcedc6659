#pragma once
// A whole serving loop but for its API, in the test's process, over a real pool: two prefill
// workers and a decode worker on emulated dies, and one more die on which a test looks at logits.
//
// Each rig has workers of its own, which know nothing of the rigs before: what they have in common
// is the pool. When a rig has gone, all that it saves is in the pool.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pdc/daemon/loop_machine.h"
#include "pdc/decode/decode_worker.h"
#include "pdc/kv/pool_store.h"
#include "pdc/kv/prefix_cache.h"
#include "pdc/prefill/local_prefill_peer.h"
#include "proto/config.pb.h"
#include "tests/e2e/serving_questions.h"
#include "tests/pdc/decode/recording_sink.h"
#include "tests/support/spied_store.h"

namespace ems::pdc::test {

struct RigOptions {
  std::string controller;
  // "ub": the dies read the memory of this host's servers. "vpc": all goes through TCP.
  std::string plane = "ub";
  double plane_scale = 50;
  context::SavePolicy policy = context::SavePolicy::kFinalResponse;
  Verify verify = Verify::kDefault;
};

// Logits of a prompt's last tokens, after as much of it as the pool has was loaded.
struct LoadedLogits {
  PrefixHit hit{};
  std::chrono::steady_clock::duration load_time{};
  std::vector<float> rows{};  // of all tokens that were computed
  std::string kv{};           // bytes of the KV that was loaded
};

// Dies on errors of its own making. Threading: one thread.
class ServingRig final {
 public:
  static constexpr uint32_t kPrefills = 2, kSpare = 2, kDecode = 3;  // dies
  static constexpr Duration kPatience = std::chrono::seconds(25);    // of a load or a save
  static constexpr KvOptions kKv{.block_tokens = kPage};

  ServingRig(std::shared_ptr<const Model> model, const RigOptions& options)
      : model_(std::move(model)), pool_(OptionsOf(options)), spied_(&pool_) {
    config::PdcConfig config;
    config.mutable_kv()->set_bytes(KvArena::BlockBytes(model_->config(), kKv) * 1024);
    config.mutable_kv()->set_plane("rdma");
    config.mutable_kv()->set_plane_scale(options.plane_scale);
    config.mutable_pool()->set_plane(options.plane);
    machine_ = *LoopMachine::Create(config, kPrefills + 1, 1, &spied_);
    const PrefixCacheOptions cache{
        .timeout = kPatience, .policy = options.policy, .saves_max = 4000};
    std::vector<PrefillPeer*> peers;
    for (uint32_t i = 0; i < kPrefills; ++i) {
      prefills_.push_back(
          *PrefillWorker::Create(model_, machine_->memory(i), machine_->store(i),
                                 {.kv = kKv, .cache = cache, .loaders = 4, .queue_max = 2000}));
      peers_.push_back(
          *LocalPrefillPeer::Create("prefill-" + std::to_string(i), prefills_.back().get(),
                                    {.port = {.path = machine_->HandoffPath(i, 0)},
                                     .ring = {.entries = 8, .entry_bytes = 16 * kKiB}}));
      peers.push_back(peers_.back().get());
    }
    decode_ = *DecodeWorker::Create(model_, machine_->memory(kDecode), machine_->store(kDecode),
                                    peers, {.kv = kKv, .cache = cache, .queue_max = 2000});
    arena_ = *KvArena::Create(model_->config(), kKv, machine_->memory(kSpare));
    engine_ = *Engine::Create(model_, {});
    cache_ = *PrefixCache::Create(machine_->store(kSpare), arena_.get(), *model_, cache);
  }

  void Submit(const Turn& turn) {
    sinks_.push_back(std::make_shared<RecordingSink>());
    DecodeTask task{.id = sinks_.size(),
                    .prompt = turn.prompt,
                    .tokens_max = turn.tokens_max,
                    .stop_at_end = turn.stop_at_end,
                    .sampler = turn.sampler,
                    .cache_salt = turn.salt};
    ASSERT_EQ(decode_->Submit(std::move(task), sinks_.back()), OkStatus());
  }
  // What became of all that was submitted, in that order.
  std::vector<RecordingSink::Told> Collect() {
    std::vector<RecordingSink::Told> told;
    for (const auto& sink : std::exchange(sinks_, {})) told.push_back(sink->Wait());
    return told;
  }

  // Loads and computes on the spare die; saves nothing.
  LoadedLogits Logits(const Turn& turn) {
    KvSequence kv(arena_.get());
    const auto begin = std::chrono::steady_clock::now();
    LoadedLogits loaded{.hit = *cache_->Load(turn.prompt, turn.salt, &kv)};
    loaded.load_time = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(kv.tokens(), loaded.hit.cached_tokens);
    for (uint32_t i = 0; i < kv.tokens() / kPage; ++i)
      loaded.kv += AsText(arena_->block(kv.blocks()[i]));
    const ForwardItem item{&kv, std::span(turn.prompt).subspan(kv.tokens()), LogitsOf::kAll};
    loaded.rows = engine_->Forward({&item, 1})->logits;
    return loaded;
  }

  PoolStore& pool() { return pool_; }
  ::ems::testing::SpiedStore& spied() { return spied_; }
  DecodeWorker& decode() { return *decode_; }
  uint64_t block_bytes() const { return arena_->block_bytes(); }

 private:
  static PoolStoreOptions OptionsOf(const RigOptions& options) {
    PoolStoreOptions pool{.verify = options.verify};
    pool.client.controller = options.controller;
    pool.client.transport = options.plane == "ub" ? TransportChoice::kAuto : TransportChoice::kTcp;
    return pool;
  }

  const std::shared_ptr<const Model> model_;
  PoolStore pool_;
  ::ems::testing::SpiedStore spied_;
  std::unique_ptr<LoopMachine> machine_;
  std::vector<std::unique_ptr<PrefillWorker>> prefills_;
  std::vector<std::unique_ptr<LocalPrefillPeer>> peers_;
  std::unique_ptr<DecodeWorker> decode_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PrefixCache> cache_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

// The rows of `logits` for those tokens that are computed whatever is loaded.
inline std::vector<float> TailOf(const std::vector<float>& logits, const Turn& turn) {
  const size_t count = std::min(turn.tail_logits.size(), logits.size());
  return {logits.end() - static_cast<ptrdiff_t>(count), logits.end()};
}

inline void ExpectAnswer(const RecordingSink::Told& told, const Turn& turn) {
  ASSERT_TRUE(told.end->ok()) << told.end->status();
  EXPECT_EQ(told.tokens, turn.answer);
  EXPECT_EQ(told.prompt_tokens, turn.prompt.size());
}

inline void ExpectLogits(const LoadedLogits& loaded, const Turn& turn) {
  EXPECT_TRUE(SameBits(TailOf(loaded.rows, turn), turn.tail_logits))
      << turn.prompt.size() << " tokens, " << loaded.hit.cached_tokens << " loaded";
}

}  // namespace ems::pdc::test
