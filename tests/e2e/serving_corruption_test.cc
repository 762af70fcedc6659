// What must hold: a bit that flips in a cached block, in the memory of a running server, changes
// no token and no logit, because the block's checksum says so; without the checksum it does. So the
// comparisons with the engine alone, which other tests make, can fail. A worker that finds the
// block damaged computes it again, and it is in the pool as it was.
#include <gtest/gtest.h>

#include "tests/e2e/serving_round.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/process_memory.h"

namespace ems::pdc::test {
namespace {

using ::ems::testing::Cluster;
using ::ems::testing::Eventually;
using ::ems::testing::ProcessMemory;

// One bit of a block that is cached.
struct Flip {
  uint32_t block = 0;  // of the prompt
  size_t byte = 0;     // of the block
  int bit = 0;         // of the byte
};

std::string Flipped(std::string bytes, const Flip& flip) {
  char& byte = bytes.at(flip.byte);
  byte = static_cast<char>(byte ^ (1 << flip.bit));
  return bytes;
}

class ServingCorruptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = Cluster::Start(
        {.servers = 1, .controller_flags = {}, .server_flags = {"--set", "dram.bytes=64MiB"}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    // Saved, and not known to the rigs of the test.
    std::mt19937_64 random(31);
    for (uint64_t i = 0; i < 16; ++i) {
      Turn turn{.salt = "prompt " + std::to_string(i),
                .prompt = RandomTokens(50 + random() % 100, random()),
                .tokens_max = 24,
                .stop_at_end = false};
      if (i % 2 == 1) turn.sampler = {.temperature = 0.8F, .seed = random()};
      engine_.Answer(&turn);
      turns_.push_back({turn});
    }
    KnownBlocks known;
    Serve(engine_.model(), Rig("ub", Verify::kDefault), turns_, Sharing::kNone, &known);
  }
  RigOptions Rig(const std::string& plane, Verify verify) const {
    return {.controller = cluster_->controller_address(),
            .plane = plane,
            .policy = context::SavePolicy::kPrefillOnly,
            .verify = verify};
  }
  // In the server's memory.
  void Replace(const std::string& bytes, const std::string& by) const {
    const Result<int> count = ProcessMemory(cluster_->server(0).pid()).Replace(bytes, by);
    ASSERT_TRUE(count.ok()) << count.status();
    ASSERT_GT(*count, 0);
  }
  static std::vector<TokenId> AnswerOf(ServingRig* rig, const Turn& turn, uint32_t cached_tokens) {
    rig->Submit(turn);
    const RecordingSink::Told told = rig->Collect().at(0);
    EXPECT_TRUE(told.end->ok()) << told.end->status();
    EXPECT_EQ(told.cached_tokens, cached_tokens);
    return told.tokens;
  }
  // A client that has just connected asks the server first; what comes by a socket is always
  // verified. False: not all of the turn's blocks are read one-sided in time.
  static bool ReadsMemory(ServingRig* rig, const Turn& turn) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(20));
    while (!deadline.Passed()) {
      const ClientStats before = rig->pool().stats();
      rig->Logits(turn);
      const ClientStats after = rig->pool().stats();
      if (after.not_attached == before.not_attached && after.not_current == before.not_current &&
          after.not_conclusive == before.not_conclusive)
        return true;
    }
    return false;
  }
  // The block is a miss for who verifies, and the mismatch is counted; who needs it saves it again.
  static void ExpectCaughtAndHealed(ServingRig* rig, const Turn& turn, const Flip& flip) {
    const uint64_t before = rig->pool().stats().checksum_mismatches;
    const LoadedLogits loaded = rig->Logits(turn);
    EXPECT_EQ(loaded.hit.cached_tokens, flip.block * kPage);
    ExpectLogits(loaded, turn);
    const uint64_t looked = rig->pool().stats().checksum_mismatches;
    EXPECT_GT(looked, before);
    EXPECT_EQ(AnswerOf(rig, turn, flip.block * kPage), turn.answer);
    EXPECT_TRUE(
        Eventually([&] { return rig->Logits(turn).hit.cached_tokens == turn.loadable_tokens(); },
                   std::chrono::seconds(20)));
    EXPECT_EQ(rig->pool().stats().checksum_mismatches, looked) << "it was gone by then";
  }

  EngineAlone engine_{TinyConfig()};
  std::unique_ptr<Cluster> cluster_;
  std::vector<Conversation> turns_;
};

TEST_F(ServingCorruptionTest, AFlippedBitIsCaughtByTheChecksumAndByNothingElse) {
  ServingRig by_default(engine_.model(), Rig("ub", Verify::kDefault));
  ServingRig always(engine_.model(), Rig("ub", Verify::kAlways));
  ServingRig over_tcp(engine_.model(), Rig("vpc", Verify::kDefault));
  ServingRig trusting(engine_.model(), Rig("ub", Verify::kNever));
  std::mt19937_64 random(32);
  int other_answers = 0;
  for (size_t i = 0; i < turns_.size(); ++i) {
    const Turn& turn = turns_[i].front();
    const uint32_t loadable = turn.loadable_tokens();
    const LoadedLogits whole = always.Logits(turn);
    ASSERT_EQ(whole.hit.cached_tokens, loadable);
    ExpectLogits(whole, turn);
    const size_t block_bytes = always.block_bytes();
    Flip flip{.block = static_cast<uint32_t>(random() % (loadable / kPage)),
              .byte = random() % block_bytes,
              .bit = static_cast<int>(random() % 8)};
    // Half of them: a high bit of a BF16's exponent, so that a value becomes huge, or nothing.
    if (i % 2 == 0) flip = {.block = flip.block, .byte = flip.byte | 1, .bit = 5};
    const std::string block = whole.kv.substr(flip.block * block_bytes, block_bytes);
    ASSERT_TRUE(ReadsMemory(&trusting, turn));
    Replace(block, Flipped(block, flip));

    const LoadedLogits wrong = trusting.Logits(turn);
    EXPECT_EQ(wrong.hit.cached_tokens, loadable) << "nobody objects";
    EXPECT_EQ(wrong.kv,
              Flipped(whole.kv,
                      {.block = 0, .byte = flip.block * block_bytes + flip.byte, .bit = flip.bit}));
    EXPECT_FALSE(SameBits(TailOf(wrong.rows, turn), turn.tail_logits)) << i;
    other_answers += AnswerOf(&trusting, turn, loadable) != turn.answer ? 1 : 0;

    ExpectCaughtAndHealed(&by_default, turn, flip);
    for (ServingRig* const rig : {&always, &over_tcp}) {
      Replace(block, Flipped(block, flip));
      ExpectCaughtAndHealed(rig, turn, flip);
    }
    const LoadedLogits again = by_default.Logits(turn);
    EXPECT_EQ(again.hit.cached_tokens, loadable);
    EXPECT_EQ(again.kv, whole.kv) << "the very bytes that were there";
    ExpectLogits(again, turn);
    EXPECT_EQ(AnswerOf(&trusting, turn, loadable), turn.answer);
  }
  std::printf("%d of %zu answers were others\n", other_answers, turns_.size());
  EXPECT_GE(other_answers, 4);
  EXPECT_EQ(trusting.pool().stats().checksum_mismatches, 0U);
  EXPECT_EQ(over_tcp.pool().stats().one_sided, 0U);
}

}  // namespace
}  // namespace ems::pdc::test
