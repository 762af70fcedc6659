#pragma once
// The engine: computes tokens of many sequences at once over paged KV, on the CPU.
//
// Invariant: KV and logits of a token depend, to the bit, on the model, the storage type of the KV
// and the tokens up to it, and on nothing else: not on chunks, batches, threads, blocks, nor on
// whether the KV before it was computed here or loaded.
//
//   auto weights = ModelWeights::FromFile("model.safetensors");
//   auto model = Model::Make(*weights);
//   auto arena = KvArena::Create(model->config(), {}, memory);
//   auto engine = Engine::Create(model, {});
//   KvSequence kv(arena->get());                       // may hold a cached prefix already
//   ForwardItem item{&kv, tokens};                     // the tokens after those that kv has
//   auto output = (*engine)->Forward({&item, 1});      // output->logits_of(0): of the last token
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "pdc/engine/kv_arena.h"
#include "pdc/engine/kv_sequence.h"
#include "pdc/engine/model_config.h"
#include "pdc/engine/model_weights.h"
#include "pdc/engine/tokenizer.h"

namespace ems::pdc {

namespace internal {
struct PackedModel;
class Transformer;
}  // namespace internal

// Weights as the engine computes with them, for any number of engines. Threading: immutable.
class Model final {
 public:
  // Copies what it needs. Cost: some ns a weight; as much memory as the weights.
  static std::shared_ptr<const Model> Make(const ModelWeights& weights);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;
  // For KeyDomain::model: models of equal fingerprints compute equal KV, to the bit. Made from
  // config, weights, storage type of the KV and the engine's arithmetic.
  std::string Fingerprint(KvStorage storage) const;

 private:
  friend class Engine;
  Model();
  std::unique_ptr<const internal::PackedModel> packed_;
  std::string digest_;
};

enum class LogitsOf : uint8_t { kNone, kLast, kAll };

// Tokens that follow those which `sequence` has. Blocks for them are reserved when they are not.
struct ForwardItem {
  KvSequence* sequence = nullptr;
  std::span<const TokenId> tokens;
  LogitsOf logits = LogitsOf::kLast;
};

// Rows are in the order of items and tokens.
struct ForwardOutput {
  uint32_t vocab = 0, hidden = 0;
  std::vector<float> logits;         // [rows][vocab]
  std::vector<float> hidden_states;  // [rows][hidden], for Draft; empty without an MTP head
  std::vector<uint32_t> first_row;   // [items + 1]: rows of item i begin at first_row[i]

  std::span<const float> row(uint32_t i) const {
    return std::span(logits).subspan(size_t{i} * vocab, vocab);
  }
  std::span<const float> hidden_row(uint32_t i) const {
    return std::span(hidden_states).subspan(size_t{i} * hidden, hidden);
  }
  // Of the item's last token.
  std::span<const float> logits_of(size_t item) const { return row(first_row[item + 1] - 1); }
};

struct ForwardOptions {
  std::optional<Deadline> deadline{};
  StopFlag* stop = nullptr;                     // may be null
  std::atomic<uint64_t>* steps_done = nullptr;  // counted up by each step; may be null
};

struct DraftItem {
  const KvSequence* sequence = nullptr;  // without `next`
  std::span<const float> hidden;         // of its last token: ForwardOutput::hidden_row
  TokenId next = 0;
};

struct EngineOptions {
  uint32_t threads = 1;     // 1 to 64
  uint32_t rows_max = 256;  // tokens of a step, 1 to 8192: a longer call takes several
  std::string kernels{};    // "avx512", "avx2", "portable"; empty: the best there is. Equal bits.
};

// Threading: one thread at a time; it has `threads` - 1 of its own. Several engines may share a
// model and an arena, with sequences of their own.
class Engine final {
 public:
  // Errors: kInvalidArgument  an option out of range, kernels that are not there
  static Result<std::unique_ptr<Engine>> Create(std::shared_ptr<const Model> model,
                                                const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const { return *model_; }

  // Computes all items' tokens: prefill, decode or both. A sequence may be named once.
  // Errors: kInvalidArgument  no tokens, unknown tokens, positions beyond positions_max, a sequence
  //   twice or of an arena that does not fit the model    kResourceExhausted  no KV blocks
  //   kFailedPrecondition  a block to be written is shared
  // (nothing has been computed, though blocks may have been reserved), and between steps of
  // rows_max tokens
  //   kCancelled  `stop` is set    kDeadlineExceeded
  // (the sequences' tokens() say what has been computed; calls may go on from there).
  Result<ForwardOutput> Forward(std::span<const ForwardItem> items,
                                const ForwardOptions& options = {});

  // The MTP head's guesses of the tokens after `next`, one for each item.
  // Errors: kFailedPrecondition  the model has no MTP head    kInvalidArgument  as Forward
  Result<std::vector<TokenId>> Draft(std::span<const DraftItem> items);

 private:
  struct Step;
  Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
         std::unique_ptr<internal::Transformer> transformer);
  Status CheckSequence(const KvSequence& sequence, uint64_t tokens) const;
  Status CheckItems(std::span<const ForwardItem> items) const;
  void RunStep(std::span<const ForwardItem> items, const Step& step, ForwardOutput* output);

  const std::shared_ptr<const Model> model_;
  const EngineOptions options_;
  const std::unique_ptr<internal::Transformer> transformer_;
};

}  // namespace ems::pdc
