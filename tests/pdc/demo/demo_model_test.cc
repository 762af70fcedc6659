// What must hold: the engine computes what the demo model was trained as, and the model writes
// words and guesses its own next token more often than not.
#include "pdc/demo/demo_model.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/sha256.h"
#include "pdc/engine/generation.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/support/paths.h"

namespace ems::pdc {
namespace {

using test::EngineRig;

constexpr uint32_t kAnswerTokens = 128;

std::ifstream Open(const std::string& file) {
  return std::ifstream(ems::testing::SourceDir() + "/pdc/demo/" + file);
}
// What train.py recorded of the model.
nlohmann::json Recorded() {
  std::ifstream file = Open("demo.json");
  return nlohmann::json::parse(file);
}

ModelWeights Weights() {
  auto weights = ModelWeights::FromBytes(DemoModelFile(), nullptr, "demo.safetensors");
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

std::vector<TokenId> PromptOf(std::string_view text) {
  std::vector<TokenId> tokens = {kBeginToken};
  AppendTokens(text, &tokens);
  return tokens;
}

Generation AnswerOf(EngineRig* rig, std::string_view prompt, bool draft, float temperature = 0) {
  GenerationOptions options;
  options.tokens_max = kAnswerTokens;
  options.draft = draft;
  options.sampler = {.temperature = temperature, .seed = 5};
  Generation generation(KvSequence(rig->arena.get()), PromptOf(prompt), options);
  EXPECT_TRUE(Prefill(rig->engine.get(), &generation).ok());
  Generation* const batch[] = {&generation};
  while (generation.finished() == FinishReason::kNone)
    EXPECT_TRUE(DecodeStep(rig->engine.get(), batch).ok());
  return generation;
}

std::string Lower(const std::string& word) {
  constexpr std::string_view kAround = ".,;:()\"'`*<>[]-";  // as corpus.py has it
  const size_t first = word.find_first_not_of(kAround);
  if (first == std::string::npos) return "";
  std::string lower = word.substr(first, word.find_last_not_of(kAround) - first + 1);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

TEST(DemoModelTest, TheFileIsTheOneThatWasRecorded) {
  EXPECT_EQ(ToHex(Sha256().Digest(DemoModelFile())), Recorded()["sha256"]);
}

TEST(DemoModelTest, TheEngineComputesWhatWasTrained) {
  EngineRig rig(Model::Make(Weights()), {.storage = KvStorage::kF32, .block_tokens = 16});
  const nlohmann::json all = Recorded();
  for (const auto& recorded : all["prompts"]) {
    const std::string prompt = recorded["prompt"];
    const std::vector<TokenId> tokens = PromptOf(prompt);
    KvSequence kv(rig.arena.get());
    const ForwardOutput output = rig.Compute(&kv, tokens);
    const std::span<const float> last = output.logits_of(0);
    const std::vector<float> wanted = recorded["logits"];
    ASSERT_EQ(last.size(), wanted.size());
    float most = 0;
    for (size_t i = 0; i < wanted.size(); ++i)
      most = std::max(most, std::fabs(last[i] - wanted[i]));
    EXPECT_LT(most, 1e-3F) << prompt;

    // The guess after the last but one token, whose KV ends there.
    kv.Truncate(kv.tokens() - 1);
    const DraftItem draft{&kv, output.hidden_row(output.first_row[1] - 2), tokens.back()};
    const auto guess = rig.engine->Draft({&draft, 1});
    ASSERT_TRUE(guess.ok()) << guess.status();
    EXPECT_EQ((*guess)[0], recorded["guess"].get<TokenId>()) << prompt;
  }
}

struct Words {
  size_t all = 0;
  size_t known = 0;
  std::set<std::string> different;
  std::string text;
};

Words WordsOf(EngineRig* rig, const std::set<std::string>& known, float temperature) {
  Words words;
  const nlohmann::json wanted = Recorded();
  for (const auto& recorded : wanted["prompts"]) {
    const std::string prompt = recorded["prompt"];
    const Generation generation = AnswerOf(rig, prompt, true, temperature);
    std::string text = Detokenize(generation.answer());
    words.text += prompt + "|" + text + "\n";
    // What the last token cuts is no word.
    if (generation.finished() == FinishReason::kLength) text.resize(text.find_last_of(" \n") + 1);
    std::istringstream stream(text.substr(std::min(text.size(), text.find_first_of(" \n."))));
    for (std::string word; stream >> word;) {
      ++words.all;
      if (!known.contains(Lower(word))) continue;
      ++words.known;
      words.different.insert(Lower(word));
    }
  }
  return words;
}

TEST(DemoModelTest, ItWritesWords) {
  std::ifstream file = Open("words.txt");
  std::set<std::string> known;
  for (std::string word; std::getline(file, word);) known.insert(word);
  EngineRig rig(Model::Make(Weights()), {.block_tokens = 16});
  for (const float temperature : {0.0F, 0.5F}) {
    const Words words = WordsOf(&rig, known, temperature);
    EXPECT_GE(words.all, 40U) << words.text;
    EXPECT_GE(static_cast<double>(words.known), 0.8 * static_cast<double>(words.all)) << words.text;
    // A greedy answer comes back to where it was.
    EXPECT_GE(words.different.size(), temperature > 0 ? 30U : 10U) << words.text;
  }
}

TEST(DemoModelTest, GuessesAreRightMoreOftenThanNotAndChangeNothing) {
  EngineRig rig(Model::Make(Weights()), {.block_tokens = 16});
  uint64_t drafts = 0, right = 0;
  const nlohmann::json wanted = Recorded();
  for (const std::string text : wanted["validation_texts"]) {
    for (const float temperature : {0.0F, 0.8F}) {
      const std::string prompt = text.substr(0, 150);
      const Generation with = AnswerOf(&rig, prompt, true, temperature);
      const Generation without = AnswerOf(&rig, prompt, false, temperature);
      EXPECT_EQ(Detokenize(with.answer()), Detokenize(without.answer()));
      if (temperature > 0) continue;
      drafts += with.drafts();
      right += with.drafts_right();
    }
  }
  EXPECT_GE(drafts, 200U);
  EXPECT_GE(static_cast<double>(right), 0.5 * static_cast<double>(drafts));
  RecordProperty("drafts", std::to_string(drafts));
  RecordProperty("right", std::to_string(right));
}

}  // namespace
}  // namespace ems::pdc
