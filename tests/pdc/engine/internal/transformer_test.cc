// What must hold: layer after layer gives the logits of a textbook's model; rows of a step and
// steps of a sequence are the same rows; logits are those of the rows that are asked for.
#include "pdc/engine/internal/transformer.h"

#include <gtest/gtest.h>

#include "tests/pdc/engine/internal/layer_rig.h"

namespace ems::pdc::internal {
namespace {

using test::RandomTokens;
using test::SameBits;
using test::TinyConfig;

constexpr size_t kRowsMax = 96;
constexpr double kNear = 2e-4;

struct TransformerRig : LayerRig {
  explicit TransformerRig(const ModelConfig& config = TinyConfig())
      : LayerRig(config), transformer(model, BestKernels(), 1, kRowsMax) {}
  // Computes tokens [first, …) of a sequence; logits of all their rows.
  std::vector<float> Run(std::span<const TokenId> tokens, const KvSequence& kv, uint32_t first) {
    const Segment segment{&kv, 0, tokens.size(), first};
    transformer.Run(tokens, {&segment, 1});
    std::vector<size_t> rows(tokens.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = i;
    return LogitsOf(rows);
  }
  std::vector<float> LogitsOf(const std::vector<size_t>& rows) {
    std::vector<float> logits(rows.size() * model.config.vocab);
    transformer.Logits(rows, logits.data());
    return logits;
  }
  Transformer transformer;
};

TEST(TransformerTest, LogitsAreThoseOfATextbooksModel) {
  TransformerRig rig;
  const size_t vocab = rig.model.config.vocab;
  const auto tokens = RandomTokens(kRowsMax, 1);
  const KvSequence kv = rig.Sequence(kRowsMax);
  const std::vector<float> logits = rig.Run(tokens, kv, 0);
  const auto wanted = rig.reference.Logits(tokens);
  for (size_t row = 0; row < tokens.size(); ++row) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * vocab);
    ExpectNear({begin, begin + static_cast<std::ptrdiff_t>(vocab)}, wanted[row], kNear);
  }
}

TEST(TransformerTest, StepsOfASequenceGiveTheBitsOfOne) {
  TransformerRig rig;
  const auto tokens = RandomTokens(kRowsMax, 2);
  const std::vector<float> whole = rig.Run(tokens, rig.Sequence(kRowsMax), 0);
  const KvSequence kv = rig.Sequence(kRowsMax);
  std::vector<float> pieces;
  for (const auto& [first, count] :
       {std::pair(0U, 1U), std::pair(1U, 30U), std::pair(31U, 64U), std::pair(95U, 1U)}) {
    const auto some = rig.Run(std::span(tokens).subspan(first, count), kv, first);
    pieces.insert(pieces.end(), some.begin(), some.end());
  }
  EXPECT_TRUE(SameBits(pieces, whole));
}

TEST(TransformerTest, LogitsAreOfTheRowsThatAreAskedFor) {
  TransformerRig rig;
  const size_t vocab = rig.model.config.vocab;
  const auto tokens = RandomTokens(20, 3);
  const std::vector<float> all = rig.Run(tokens, rig.Sequence(20), 0);
  const std::vector<float> some = rig.LogitsOf({19, 4});
  EXPECT_TRUE(SameBits(std::span(some).first(vocab), std::span(all).subspan(19 * vocab)));
  EXPECT_TRUE(SameBits(std::span(some).subspan(vocab), std::span(all).subspan(4 * vocab, vocab)));
}

TEST(TransformerTest, TheMtpHeadGivesATextbooksLogits) {
  ModelConfig config = TinyConfig();
  config.mtp = true;
  TransformerRig rig(config);
  const auto tokens = RandomTokens(70, 4);
  const KvSequence kv = rig.Sequence(71);
  rig.Run(tokens, kv, 0);
  const float* const last = rig.transformer.hidden(69);
  const std::vector<float> hidden(last, last + config.hidden);
  const float* const hiddens[] = {hidden.data()};
  const TokenId next[] = {42};
  const Segment segment{&kv, 0, 1, 70};
  std::vector<float> logits(config.vocab);
  rig.transformer.Draft(next, hiddens, {&segment, 1}, logits.data());
  rig.reference.Logits(tokens);
  ExpectNear({logits.begin(), logits.end()}, rig.reference.Draft(42), kNear);
}

TEST(TransformerTest, MoreRowsThanItHasRoomForAreABug) {
  TransformerRig rig;
  const auto tokens = RandomTokens(kRowsMax + 1, 5);
  const KvSequence kv = rig.Sequence(kRowsMax + 1);
  const Segment segment{&kv, 0, tokens.size(), 0};
  EXPECT_DEATH(rig.transformer.Run(tokens, {&segment, 1}), "97 rows of 96");
}

}  // namespace
}  // namespace ems::pdc::internal
