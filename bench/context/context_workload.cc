#include "bench/context/context_workload.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <unordered_set>
#include <utility>

#include "common/bytes.h"

namespace ems::bench {
namespace {

constexpr uint64_t kRequestsMax = 1'000'000;
constexpr uint64_t kReferencesMax = 50'000'000;
// Unique blocks, as a part of what the cache holds. Where all is to fit there is room to spare:
// each server has its share of the room, and not exactly that share of the keys.
constexpr double kFits = 0.67;
constexpr double kOverflow = 1.05;
constexpr double kPopular = 2;
constexpr uint64_t kPopularDocuments = 4;  // for each prompt of a round

uint64_t BlocksOf(uint64_t tokens) { return (tokens + kTraceBlockTokens - 1) / kTraceBlockTokens; }

class Maker final {
 public:
  Maker(std::string_view name, size_t number, const WorkloadSettings& settings)
      : settings_(settings), next_block_(uint64_t{number} << 40), random_(settings.seed) {
    workload_.name = name;
    workload_.requests_per_round = settings.prompts;
  }

  // Each document is asked about once a round; `shuffled`: in another order each time.
  void Documents(bool shuffled) {
    std::vector<std::vector<uint64_t>> documents(settings_.prompts);
    for (auto& document : documents) Append(settings_.prompt_tokens, &document);
    std::vector<size_t> order(documents.size());
    std::iota(order.begin(), order.end(), 0);
    for (uint64_t round = 0; round < settings_.rounds; ++round) {
      if (shuffled) std::shuffle(order.begin(), order.end(), random_);
      for (const size_t i : order) {
        std::vector<uint64_t> prompt = documents[i];
        if (shuffled) Append(settings_.turn_tokens, &prompt);
        Ask(std::move(prompt));
      }
    }
  }

  // Drawn at random; the first quarter of the documents is asked about as often as the rest.
  void Popular() {
    std::vector<std::vector<uint64_t>> documents(kPopularDocuments * settings_.prompts);
    for (auto& document : documents) Append(settings_.prompt_tokens, &document);
    workload_.requests_per_round = documents.size();
    std::uniform_real_distribution<double> unit(0, 1);
    for (uint64_t i = 0; i < settings_.rounds * documents.size(); ++i) {
      const double at = unit(random_);
      Ask(documents[static_cast<size_t>(at * at * static_cast<double>(documents.size()))]);
    }
  }

  void Chat() {
    std::vector<uint64_t> shared;
    Append(settings_.shared_tokens, &shared);
    std::vector<std::vector<uint64_t>> users(settings_.prompts, shared);
    for (uint64_t round = 0; round < settings_.rounds; ++round) {
      for (auto& conversation : users) {
        Append(settings_.turn_tokens, &conversation);
        Ask(conversation);
      }
    }
  }

  void Random() {
    for (uint64_t i = 0; i < settings_.rounds * settings_.prompts; ++i) {
      std::vector<uint64_t> prompt;
      Append(settings_.prompt_tokens, &prompt);
      Ask(std::move(prompt));
    }
  }

  Workload Finish(double overflow) {
    std::unordered_set<uint64_t> unique;
    for (const TraceRequest& request : workload_.trace.requests)
      unique.insert(request.blocks.begin(), request.blocks.end());
    workload_.trace.unique_blocks = unique.size();
    workload_.capacity_blocks =
        std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(unique.size()) / overflow));
    return std::move(workload_);
  }

 private:
  // Blocks that nobody has used before.
  void Append(uint64_t tokens, std::vector<uint64_t>* blocks) {
    for (uint64_t i = 0; i < BlocksOf(tokens); ++i) blocks->push_back(next_block_++);
  }

  void Ask(std::vector<uint64_t> blocks) {
    Trace& trace = workload_.trace;
    TraceRequest request;
    request.input_tokens = blocks.size() * kTraceBlockTokens;
    request.blocks = std::move(blocks);
    trace.block_references += request.blocks.size();
    trace.input_tokens += request.input_tokens;
    trace.request_blocks_max = std::max(trace.request_blocks_max, request.blocks.size());
    trace.requests.push_back(std::move(request));
  }

  const WorkloadSettings settings_;
  Workload workload_;
  uint64_t next_block_;
  std::mt19937_64 random_;
};

}  // namespace

const std::vector<std::string>& WorkloadNames() {
  static const std::vector<std::string> names = {"long-doc-qa", "chat", "random", "overflow",
                                                 "popular"};
  return names;
}

Result<Workload> MakeWorkload(std::string_view name, const WorkloadSettings& settings) {
  const auto& names = WorkloadNames();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    return Error(StatusCode::kInvalidArgument, "no workload \"{}\"", Printable(name));
  const uint64_t longest = BlocksOf(settings.prompt_tokens) + BlocksOf(settings.shared_tokens) +
                           settings.rounds * BlocksOf(settings.turn_tokens);
  if (settings.rounds == 0 || settings.prompts == 0 || settings.prompt_tokens == 0 ||
      settings.rounds > kRequestsMax / settings.prompts ||
      longest > kReferencesMax / (kPopularDocuments * settings.rounds * settings.prompts)) {
    return Error(StatusCode::kInvalidArgument,
                 "{} rounds of {} prompts of {} tokens: 1 to {} requests with up to {} blocks in "
                 "all can be made",
                 settings.rounds, settings.prompts, settings.prompt_tokens, kRequestsMax,
                 kReferencesMax);
  }
  Maker maker(name, static_cast<size_t>(found - names.begin()) + 1, settings);
  if (name == "chat") {
    maker.Chat();
  } else if (name == "random") {
    maker.Random();
  } else if (name == "popular") {
    maker.Popular();
    return maker.Finish(kPopular);
  } else {
    maker.Documents(name == "long-doc-qa");
  }
  return maker.Finish(name == "overflow" ? kOverflow : kFits);
}

}  // namespace ems::bench
