#pragma once
// Conversations served by a rig, turn by turn, and compared with what the engine alone answers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "fabric/emulated/emulated_fabric.h"
#include "pdc/kv/paced_store.h"
#include "tests/e2e/serving_questions.h"
#include "tests/e2e/serving_rig.h"

namespace ems::pdc::test {

// A model and what it is asked.
struct Asked {
  EngineAlone engine;
  std::vector<Conversation> conversations;

  Asked(bool mtp, const QuestionOptions& options)
      : engine(ConfigOf(mtp)), conversations(MakeConversations(&engine, options)) {}
  static ModelConfig ConfigOf(bool mtp) {
    ModelConfig config = TinyConfig();
    config.mtp = mtp;
    return config;
  }
};

// 500 prompts and 40 conversations, computed once a process. A fifth of them go to a model with an
// MTP head.
inline std::vector<std::unique_ptr<Asked>>& AllAsked() {
  static std::vector<std::unique_ptr<Asked>> all = [] {
    std::vector<std::unique_ptr<Asked>> made;
    made.push_back(std::make_unique<Asked>(
        false, QuestionOptions{.prompts = 400, .conversations = 30, .seed = 20}));
    made.push_back(std::make_unique<Asked>(
        true, QuestionOptions{.prompts = 100, .conversations = 10, .seed = 21}));
    return made;
  }();
  return all;
}

// The same with salts of their own, so that nobody shares anything with anybody.
inline std::vector<Conversation> Apart(std::vector<Conversation> all, const std::string& name) {
  for (size_t i = 0; i < all.size(); ++i) {
    for (Turn& turn : all[i]) turn.salt += "/" + name + "/" + std::to_string(i);
  }
  return all;
}

// The emulated path from the pool to the rig's spare die.
class SparePath final {
 public:
  explicit SparePath(const RigOptions& options)
      : fabric_(*fabric::EmulatedTopology::Create(
            {}, *fabric::EmulatedLinkModel::Create(options.plane_scale))),
        read_(PathsToPool(&fabric_, fabric_.topology().DieAt(ServingRig::kSpare),
                          options.plane == "ub" ? fabric::Plane::kUb : fabric::Plane::kVpc)
                  ->read) {}
  Duration TimeOf(uint64_t bytes) const { return read_->TimeOf(bytes); }

 private:
  fabric::EmulatedFabric fabric_;
  const fabric::EmulatedPath* read_;
};

struct Served {
  uint64_t requests = 0, loadable_tokens = 0;
  uint64_t looked_tokens = 0;   // loaded for a look at logits
  uint64_t cached_tokens = 0;   // loaded for answers
  uint64_t decoded_blocks = 0;  // of answers, for the next turns
  uint64_t drafts = 0, one_sided = 0, reads_failed = 0;
};

enum class Sharing : uint8_t { kNone, kSome };

// Logits of each turn, then its answer by all workers at once; a new rig for each of the turns.
// `known`: what the pool must have; it grows. Fails the test on any difference: of tokens, of
// logits, of what came from the cache; and when a load was faster than its plane.
inline Served Serve(const std::shared_ptr<const Model>& model, const RigOptions& options,
                    const std::vector<Conversation>& conversations, Sharing sharing,
                    KnownBlocks* known) {
  const SparePath path(options);
  Served served;
  for (size_t n = 0; n < 3; ++n) {
    std::vector<const Turn*> turns;
    for (const Conversation& conversation : conversations) {
      if (n < conversation.size()) turns.push_back(&conversation[n]);
    }
    ServingRig rig(model, options);
    std::vector<uint32_t> loadable;
    for (const Turn* turn : turns) {
      loadable.push_back(known->LoadableOf(*turn));
      const LoadedLogits loaded = rig.Logits(*turn);
      ExpectLogits(loaded, *turn);
      EXPECT_EQ(loaded.hit.cached_tokens, loadable.back());
      if (loaded.hit.cached_tokens > 0) {
        EXPECT_GE(loaded.load_time, path.TimeOf(loaded.kv.size()));
      }
      served.looked_tokens += loaded.hit.cached_tokens;
    }
    for (const Turn* turn : turns) rig.Submit(*turn);
    const auto told = rig.Collect();
    for (size_t i = 0; i < turns.size(); ++i) {
      ExpectAnswer(told[i], *turns[i]);
      if (sharing == Sharing::kNone) {
        EXPECT_EQ(told[i].cached_tokens, loadable[i]);
      } else {
        EXPECT_GE(told[i].cached_tokens, loadable[i]);
        EXPECT_LE(told[i].cached_tokens, turns[i]->loadable_tokens());
      }
      served.cached_tokens += told[i].cached_tokens;
      served.loadable_tokens += turns[i]->loadable_tokens();
      ++served.requests;
    }
    for (const Turn* turn : turns) {
      known->Add(turn->salt, turn->prompt);
      if (options.policy == context::SavePolicy::kPrefillOnly) continue;
      std::vector<TokenId> all = turn->prompt;  // the last token of an answer is in nobody's KV
      all.insert(all.end(), turn->answer.begin(), turn->answer.end() - 1);
      known->Add(turn->salt, all);
      served.decoded_blocks += all.size() / kPage - turn->prompt.size() / kPage;
    }
    served.drafts += rig.decode().stats().drafts;
    served.reads_failed += rig.spied().seen().failures;
    served.one_sided += rig.pool().stats().one_sided;
  }
  return served;
}

}  // namespace ems::pdc::test
