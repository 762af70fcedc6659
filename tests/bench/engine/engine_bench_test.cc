// What must hold: every wanted measurement comes out, with the tokens it was asked for, and a run
// can be interrupted.
#include "bench/engine/engine_bench.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

EngineBenchSettings Tiny() {
  EngineBenchSettings settings;
  settings.kv.block_tokens = 16;
  settings.prompt_tokens = 100;
  settings.prompts = {5, 40};
  settings.reuse_percent = {0, 50, 100};
  settings.batches = {1, 3};
  settings.decode_steps = 20;
  settings.rounds = 1;
  return settings;
}

TEST(EngineBenchTest, MeasuresWhatWasAskedFor) {
  auto bench = EngineBench::Create(Tiny());
  ASSERT_TRUE(bench.ok()) << bench.status();
  const auto go_on = [] { return true; };
  const auto prefills = (*bench)->Prefills(go_on);
  ASSERT_TRUE(prefills.ok()) << prefills.status();
  ASSERT_EQ(prefills->size(), 2U);
  EXPECT_EQ(prefills->at(1).prompt, 40U);
  EXPECT_GT(prefills->at(1).gflops, 0);
  const auto reuse = (*bench)->Reuse(go_on);
  ASSERT_TRUE(reuse.ok()) << reuse.status();
  ASSERT_EQ(reuse->size(), 3U);
  EXPECT_EQ(reuse->at(0).cached, 0U);
  EXPECT_EQ(reuse->at(1).cached, 48U);  // whole blocks
  EXPECT_EQ(reuse->at(2).cached, 96U);
  const auto decodes = (*bench)->Decodes(go_on);
  ASSERT_TRUE(decodes.ok()) << decodes.status();
  ASSERT_EQ(decodes->size(), 2U);
  EXPECT_EQ(decodes->at(1).batch, 3U);
  EXPECT_GT(decodes->at(1).tokens_per_s, 0);
}

TEST(EngineBenchTest, CanBeInterrupted) {
  auto bench = EngineBench::Create(Tiny());
  ASSERT_TRUE(bench.ok()) << bench.status();
  const auto stop = [] { return false; };
  EXPECT_EQ((*bench)->Prefills(stop).status().code(), StatusCode::kCancelled);
  EXPECT_EQ((*bench)->Decodes(stop).status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace ems::bench
