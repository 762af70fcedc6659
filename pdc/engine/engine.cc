#include "pdc/engine/engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/sha256.h"
#include "pdc/engine/internal/packed_model.h"
#include "pdc/engine/internal/transformer.h"
#include "pdc/engine/sampler.h"

namespace ems::pdc {
namespace {

// Goes up when the engine computes other bits from the same weights.
constexpr std::string_view kArithmetic = "ems-engine 1";
constexpr uint32_t kThreadsMax = 64;
constexpr uint32_t kRowsMax = 8192;

template <typename... Args>
Status Bad(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument,
               std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace

Model::Model() = default;
Model::~Model() = default;

std::shared_ptr<const Model> Model::Make(const ModelWeights& weights) {
  std::shared_ptr<Model> model(new Model());  // NOLINT: the constructor is private
  model->packed_ = std::make_unique<const internal::PackedModel>(weights);
  model->digest_ = weights.digest();
  return model;
}

const ModelConfig& Model::config() const { return packed_->config; }

std::string Model::Fingerprint(KvStorage storage) const {
  Sha256 sha;
  for (const std::string_view part : {kArithmetic, std::string_view(digest_), NameOf(storage)}) {
    sha.Update(AsBytes(part));
    sha.Update(AsBytes("\n"));
  }
  return ToHex(sha.Finish());
}

// Some tokens of some items, rows_max at most.
struct Engine::Step {
  struct Piece {
    size_t item = 0;
    size_t first = 0;  // of the item's tokens
    size_t tokens = 0;
  };
  std::vector<Piece> pieces;
  size_t rows = 0;
};

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
               std::unique_ptr<internal::Transformer> transformer)
    : model_(std::move(model)), options_(options), transformer_(std::move(transformer)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<const Model> model,
                                               const EngineOptions& options) {
  if (options.threads < 1 || options.threads > kThreadsMax)
    return Bad("engine: {} threads, it has to be 1 to {}", options.threads, kThreadsMax);
  if (options.rows_max < 1 || options.rows_max > kRowsMax)
    return Bad("engine: rows_max is {}, it has to be 1 to {}", options.rows_max, kRowsMax);
  const internal::Kernels* kernels = options.kernels.empty()
                                         ? &internal::BestKernels()
                                         : internal::KernelsByName(options.kernels.c_str());
  if (kernels == nullptr)
    return Bad("engine: no kernels '{}' on this processor", Printable(options.kernels));
  auto transformer = std::make_unique<internal::Transformer>(*model->packed_, *kernels,
                                                             options.threads, options.rows_max);
  return std::unique_ptr<Engine>(
      new Engine(std::move(model), options, std::move(transformer)));  // NOLINT: private
}

Status Engine::CheckSequence(const KvSequence& sequence, uint64_t tokens) const {
  const ModelConfig& config = model_->config();
  const KvArena& arena = *sequence.arena();
  if (arena.layers() != config.layers || arena.latent_dim() != config.latent_dim ||
      arena.rope_dim() != config.rope_dim)
    return Bad("the KV arena has {} layers of {}+{}, model {} has {} of {}+{}", arena.layers(),
               arena.latent_dim(), arena.rope_dim(), config.name, config.layers, config.latent_dim,
               config.rope_dim);
  if (sequence.tokens() + tokens > config.positions_max)
    return Bad("{} tokens after {}: model {} has {} positions", tokens, sequence.tokens(),
               config.name, config.positions_max);
  return OkStatus();
}

Status Engine::CheckItems(std::span<const ForwardItem> items) const {
  std::set<const KvSequence*> seen;
  for (const ForwardItem& item : items) {
    if (item.tokens.empty()) return Bad("no tokens to compute");
    EMS_RETURN_IF_ERROR(CheckSequence(*item.sequence, item.tokens.size()));
    for (const TokenId token : item.tokens)
      if (token >= model_->config().vocab)
        return Bad("token {} of a vocabulary of {}", token, model_->config().vocab);
    if (!seen.insert(item.sequence).second) return Bad("the same sequence twice in a batch");
  }
  for (const ForwardItem& item : items) {
    const auto count = static_cast<uint32_t>(item.tokens.size());
    EMS_RETURN_IF_ERROR(item.sequence->Reserve(item.sequence->tokens() + count));
    EMS_RETURN_IF_ERROR(item.sequence->CheckWritable(item.sequence->tokens(), count));
  }
  return OkStatus();
}

Result<ForwardOutput> Engine::Forward(std::span<const ForwardItem> items,
                                      const ForwardOptions& options) {
  EMS_RETURN_IF_ERROR(CheckItems(items));
  ForwardOutput output;
  output.vocab = model_->config().vocab;
  output.hidden = model_->config().hidden;
  output.first_row.push_back(0);
  for (const ForwardItem& item : items) {
    size_t rows = item.logits == LogitsOf::kLast ? 1 : 0;
    if (item.logits == LogitsOf::kAll) rows = item.tokens.size();
    output.first_row.push_back(output.first_row.back() + static_cast<uint32_t>(rows));
  }
  output.logits.resize(size_t{output.first_row.back()} * output.vocab);
  if (model_->config().mtp)
    output.hidden_states.resize(size_t{output.first_row.back()} * output.hidden);

  size_t item = 0, first = 0;
  while (item < items.size()) {
    if (options.stop != nullptr && options.stop->IsSet())
      return Error(StatusCode::kCancelled, "stopped at item {} of {}", item, items.size());
    if (options.deadline && options.deadline->Passed())
      return Error(StatusCode::kDeadlineExceeded, "the time was over at item {} of {}", item,
                   items.size());
    Step step;
    while (item < items.size() && step.rows < options_.rows_max) {
      const size_t left = items[item].tokens.size() - first;
      const size_t some = std::min(left, options_.rows_max - step.rows);
      step.pieces.push_back({item, first, some});
      step.rows += some;
      first = some == left ? 0 : first + some;
      if (some == left) ++item;
    }
    RunStep(items, step, &output);
    if (options.steps_done != nullptr) options.steps_done->fetch_add(1, std::memory_order_relaxed);
  }
  return output;
}

void Engine::RunStep(std::span<const ForwardItem> items, const Step& step, ForwardOutput* output) {
  std::vector<TokenId> tokens;
  std::vector<internal::Segment> segments;
  std::vector<size_t> wanted;  // rows of the step
  std::vector<size_t> places;  // rows of the output
  for (const Step::Piece& piece : step.pieces) {
    const ForwardItem& item = items[piece.item];
    segments.push_back({item.sequence, tokens.size(), piece.tokens, item.sequence->tokens()});
    for (size_t i = piece.first; i < piece.first + piece.tokens; ++i) {
      const bool last = i + 1 == item.tokens.size();
      if (item.logits == LogitsOf::kAll || (item.logits == LogitsOf::kLast && last)) {
        wanted.push_back(tokens.size());
        places.push_back(output->first_row[piece.item] + (item.logits == LogitsOf::kAll ? i : 0));
      }
      tokens.push_back(item.tokens[i]);
    }
  }
  transformer_->Run(tokens, segments);
  for (const Step::Piece& piece : step.pieces) {
    KvSequence* const sequence = items[piece.item].sequence;
    const Status set =
        sequence->SetTokens(sequence->tokens() + static_cast<uint32_t>(piece.tokens));
    EMS_CHECK(set.ok(), "{}", Message(set));
  }
  if (wanted.empty()) return;
  // Wanted rows of a step are neighbours in the output: pieces come in its order.
  EMS_CHECK(places.back() - places.front() + 1 == places.size(), "rows {} to {} are {}",
            places.front(), places.back(), places.size());
  transformer_->Logits(wanted, output->logits.data() + places.front() * output->vocab);
  if (output->hidden_states.empty()) return;
  for (size_t i = 0; i < wanted.size(); ++i)
    std::copy_n(transformer_->hidden(wanted[i]), output->hidden,
                output->hidden_states.data() + places[i] * output->hidden);
}

Result<std::vector<TokenId>> Engine::Draft(std::span<const DraftItem> items) {
  const ModelConfig& config = model_->config();
  if (!config.mtp)
    return Error(StatusCode::kFailedPrecondition, "model {} has no MTP head", config.name);
  for (const DraftItem& item : items) {
    EMS_RETURN_IF_ERROR(CheckSequence(*item.sequence, 1));
    if (item.next >= config.vocab)
      return Bad("token {} of a vocabulary of {}", item.next, config.vocab);
    if (item.hidden.size() != config.hidden || item.sequence->tokens() == 0)
      return Bad("a draft after {} tokens with a hidden state of {}, model {} has {}",
                 item.sequence->tokens(), item.hidden.size(), config.name, config.hidden);
  }
  std::vector<TokenId> drafts;
  std::vector<float> logits(size_t{options_.rows_max} * config.vocab);
  for (size_t first = 0; first < items.size(); first += options_.rows_max) {
    const size_t rows = std::min<size_t>(options_.rows_max, items.size() - first);
    std::vector<TokenId> next;
    std::vector<const float*> hiddens;
    std::vector<internal::Segment> segments;
    for (size_t i = first; i < first + rows; ++i) {
      next.push_back(items[i].next);
      hiddens.push_back(items[i].hidden.data());
      segments.push_back({items[i].sequence, i - first, 1, items[i].sequence->tokens()});
    }
    transformer_->Draft(next, hiddens, segments, logits.data());
    for (size_t i = 0; i < rows; ++i)
      drafts.push_back(Greedy(std::span(logits).subspan(i * config.vocab, config.vocab)));
  }
  return drafts;
}

}  // namespace ems::pdc
