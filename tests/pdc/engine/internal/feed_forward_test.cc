// What must hold: the feed-forward part gives what a textbook's does that looks at every expert; a
// row's result is that of the row alone; the routed part is linear in its scale.
#include "pdc/engine/internal/feed_forward.h"

#include <gtest/gtest.h>

#include "tests/pdc/engine/internal/layer_rig.h"

namespace ems::pdc::internal {
namespace {

using test::SameBits;
using test::TinyConfig;

constexpr uint32_t kDenseLayer = 0, kExpertLayer = 1;
constexpr size_t kRows = 128;  // enough work for several threads

struct FeedForwardRig : LayerRig {
  explicit FeedForwardRig(const ModelConfig& config, size_t threads = 1)
      : LayerRig(config, kWideKv, threads), part(model, &compute, kRows) {}
  FloatRows Experts(RowsView x, size_t rows) {
    FloatRows out(rows, model.config.hidden);
    part.Experts(model.layers[kExpertLayer], x, rows, out);
    return out;
  }
  FeedForward part;
};

void ExpectExpertsNear(const ModelConfig& config) {
  FeedForwardRig rig(config);
  const FloatRows x = RandomRows(kRows, config.hidden, 1);
  const FloatRows out = rig.Experts(x, kRows);
  for (size_t row = 0; row < kRows; ++row)
    ExpectNear(RowOf(out, row, config.hidden),
               rig.reference.FeedForward("model.layers.1.mlp.", kExpertLayer,
                                         RowOf(x, row, config.hidden)),
               1e-4);
}

TEST(FeedForwardTest, ThePlainPartIsAGatedProduct) {
  FeedForwardRig rig(TinyConfig());
  const size_t hidden = rig.model.config.hidden;
  const FloatRows x = RandomRows(5, hidden, 2);
  FloatRows out(5, hidden);
  rig.part.Dense(rig.model.layers[kDenseLayer].dense, x, 5, out);
  for (size_t row = 0; row < 5; ++row)
    ExpectNear(RowOf(out, row, hidden),
               rig.reference.Gated("model.layers.0.mlp.", RowOf(x, row, hidden)), 1e-4);
}

TEST(FeedForwardTest, ExpertsAreThoseWithTheBestScoresWhateverTheRouter) {
  ModelConfig config = TinyConfig();
  ExpectExpertsNear(config);
  config.router = RouterKind::kSoftmax;
  config.experts = 5;  // not a whole vector of scores
  config.experts_per_token = 3;
  config.shared_experts = 2;
  config.routed_scale = 1.5F;
  ExpectExpertsNear(config);
  config.experts_per_token = 5;  // all of them
  config.shared_experts = 0;
  ExpectExpertsNear(config);
}

TEST(FeedForwardTest, ARowIsThatOfTheRowAloneAndOfAnyNumberOfThreads) {
  const ModelConfig config = TinyConfig();
  FeedForwardRig rig(config), threaded(config, 3);
  const FloatRows x = RandomRows(kRows, config.hidden, 3);
  const FloatRows whole = rig.Experts(x, kRows);
  const FloatRows shared = threaded.Experts(x, kRows);
  for (size_t row = 0; row < kRows; ++row) {
    const FloatRows alone = rig.Experts(x.from(row), 1);
    const auto wanted = BitsOf(whole, row, config.hidden);
    EXPECT_TRUE(SameBits(BitsOf(alone, 0, config.hidden), wanted)) << row;
    EXPECT_TRUE(SameBits(BitsOf(shared, row, config.hidden), wanted)) << row;
  }
}

TEST(FeedForwardTest, TwiceTheScaleIsTwiceTheRoutedPartToTheBit) {
  ModelConfig config = TinyConfig();
  config.shared_experts = 0;
  FeedForwardRig once(config);
  config.routed_scale = 2.0F;
  FeedForwardRig twice(config);
  const FloatRows x = RandomRows(9, config.hidden, 4);
  const FloatRows one = once.Experts(x, 9);
  const FloatRows two = twice.Experts(x, 9);
  for (size_t row = 0; row < 9; ++row)
    for (size_t i = 0; i < config.hidden; ++i) ASSERT_EQ(two.row(row)[i], 2 * one.row(row)[i]);
}

}  // namespace
}  // namespace ems::pdc::internal
