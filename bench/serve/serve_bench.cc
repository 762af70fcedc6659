#include "bench/serve/serve_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/harness/interrupt.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/hash.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr double kTemperature = 0.8;  // of every other request
constexpr int kStoreAttempts = 40;    // until a prefix is there; saves happen behind an answer
constexpr int kStoreAttemptsUnknown = 2;
constexpr Duration kStorePause = std::chrono::milliseconds(25);
constexpr size_t kWavesPerPlace = 2;  // requests of a wave for each that is under way at a time
constexpr size_t kShownMax = 96;

uint64_t WholeBlocks(uint64_t tokens, uint64_t block_tokens) {
  return tokens / block_tokens * block_tokens;
}

std::string NameOfPhase(double reuse, bool alone, const LoadSettings& load) {
  std::string name = fmt::format("reuse {:g} %", 100 * reuse);
  if (alone) return name + ", one at a time";
  return name + (load.rate > 0 ? fmt::format(", {:g} a second", load.rate)
                               : fmt::format(", {} at a time", load.concurrency));
}

}  // namespace

ServeRequest ServeBench::Request(std::string prompt, uint32_t output_tokens) {
  ServeRequest request{.prompt = std::move(prompt),
                       .output_tokens = output_tokens,
                       .cache_salt = settings_.cache_salt};
  if (++requests_ % 2 == 0) {
    request.temperature = kTemperature;
    request.seed = requests_;
  }
  return request;
}

ServePhase* ServeBench::BeginPhase(std::string name) {
  on_phase_(name);
  ServePhase& phase = results_.phases.emplace_back();
  phase.name = std::move(name);
  phase.sides.resize(sides_.size());
  return &phase;
}

std::vector<std::vector<ServeOutcome>> ServeBench::Wave(std::span<const ServeRequest> requests,
                                                        const LoadSettings& load,
                                                        std::vector<ServeFigures>* figures) {
  std::vector<std::vector<ServeOutcome>> outcomes(sides_.size());
  const uint64_t first = waves_++;
  for (size_t i = 0; i < sides_.size(); ++i) {
    const size_t side = (first + i) % sides_.size();
    LoadResult result = RunLoad(sides_[side].client, requests, load, stopped_);
    ServeFigures& sum = (*figures)[side];
    sum.elapsed += result.elapsed;
    for (const ServeOutcome& outcome : result.outcomes) sum.Add(outcome);
    outcomes[side] = std::move(result.outcomes);
  }
  Compare(requests, outcomes);
  return outcomes;
}

void ServeBench::Compare(std::span<const ServeRequest> requests,
                         const std::vector<std::vector<ServeOutcome>>& outcomes) {
  for (size_t side = 1; side < outcomes.size(); ++side) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const ServeOutcome& one = outcomes[0][i];
      const ServeOutcome& other = outcomes[side][i];
      if (!one.status.ok() || !other.status.ok()) continue;  // counted as failed
      if (one.text == other.text && one.completion_tokens == other.completion_tokens) continue;
      results_.differences.push_back(fmt::format(
          "the answer to prompt {:016x} ({} tokens, {}) is not the same: {} says {} tokens \"{}\", "
          "{} says {} tokens \"{}\"",
          Hash64(AsBytes(requests[i].prompt)), requests[i].prompt.size(),
          requests[i].seed ? fmt::format("seed {}", *requests[i].seed) : "greedy", sides_[0].name,
          one.completion_tokens, Printable(one.text, kShownMax), sides_[side].name,
          other.completion_tokens, Printable(other.text, kShownMax)));
    }
  }
}

// Prompts that no other has a block in common with, under load: connections, threads and memory are
// there before anything counts.
Status ServeBench::WarmUp() {
  if (settings_.warmup_prompts == 0) return OkStatus();
  on_phase_("warm-up");
  std::vector<ServeRequest> requests;
  for (uint64_t i = 0; i < settings_.warmup_prompts; ++i)
    requests.push_back(
        {.prompt = fmt::format("warm-up {}: ", i) + MakeText(settings_.prefix.prompt_tokens, i),
         .output_tokens = settings_.output_tokens,
         .cache_salt = settings_.cache_salt});
  for (const ServeSide& side : sides_) {
    for (const ServeOutcome& outcome :
         RunLoad(side.client, requests, settings_.load, stopped_).outcomes)
      EMS_RETURN_IF_ERROR(Prefixed(outcome.status, side.name + ": warm-up"));
  }
  return OkStatus();
}

Status ServeBench::Chat() {
  if (settings_.chat.rounds == 0 || settings_.chat.conversations == 0) return OkStatus();
  ServePhase* const phase = BeginPhase("chat");
  phase->alone = false;
  ChatWorkload chat(settings_.chat);
  std::vector<uint64_t> going(settings_.chat.conversations);
  for (uint64_t i = 0; i < going.size(); ++i) going[i] = i;
  for (uint64_t number = 0; number < settings_.chat.rounds && !going.empty(); ++number) {
    ServeRound& round = results_.rounds.emplace_back();
    round.sides.resize(sides_.size());
    std::vector<ServeRequest> requests;
    for (const uint64_t one : going) {
      requests.push_back(Request(chat.prompt(one), settings_.chat_output_tokens));
      round.prompt_tokens += chat.prompt(one).size();
      round.reusable_tokens +=
          WholeBlocks(chat.repeated_tokens(one), settings_.prefix.block_tokens);
    }
    LoadSettings load = settings_.load;
    load.seed += number;
    const auto outcomes = Wave(requests, load, &round.sides);
    for (size_t side = 0; side < sides_.size(); ++side) phase->sides[side].Merge(round.sides[side]);
    // A conversation goes on where all sides said the same.
    std::vector<uint64_t> next;
    for (size_t i = 0; i < going.size(); ++i) {
      const bool same = std::ranges::all_of(outcomes, [&](const auto& side) {
        return side[i].status.ok() && side[i].text == outcomes[0][i].text;
      });
      if (!same) continue;
      chat.Answer(going[i], outcomes[0][i].text);
      next.push_back(going[i]);
    }
    going = std::move(next);
    if (stopped_()) return Interruption();
  }
  return OkStatus();
}

// Asks for the prime until it is answered from the cache: then the prefix is there for all.
Status ServeBench::StoreOn(const ServeSide& side, const PrefixGroup& group) {
  const ServeRequest request{
      .prompt = group.prime, .output_tokens = 1, .cache_salt = settings_.cache_salt};
  int attempts = 1;
  if (side.cache == SideCache::kExpected) attempts = kStoreAttempts;
  if (side.cache == SideCache::kUnknown) attempts = kStoreAttemptsUnknown;
  StopFlag never;
  uint64_t cached = 0;
  for (int i = 0; i < attempts && cached < group.shared_tokens; ++i) {
    if (stopped_()) return Interruption();
    if (i > 0) never.WaitFor(kStorePause);
    const ServeOutcome outcome = side.client.Ask(request, Clock::System().Now());
    if (!outcome.status.ok()) return Prefixed(outcome.status, "cannot store a prefix");
    cached = outcome.cached_tokens;
  }
  if (side.cache == SideCache::kExpected && cached < group.shared_tokens)
    return Error(StatusCode::kNotFound,
                 "{}: a prefix of {} tokens was asked for {} times, and {} of them came from the "
                 "cache at last",
                 side.name, group.shared_tokens, attempts, cached);
  return OkStatus();
}

Status ServeBench::Prime(const PrefixGroup& group) {
  for (const ServeSide& side : sides_) EMS_RETURN_IF_ERROR(StoreOn(side, group));
  return OkStatus();
}

Status ServeBench::SharedPrefix(double reuse, bool alone) {
  SharedPrefixSettings wanted = settings_.prefix;
  wanted.reuse = reuse;
  wanted.seed = Hash64(AsBytes(fmt::format("{} {}", reuse, alone)), settings_.prefix.seed);
  EMS_ASSIGN_OR_RETURN(const std::vector<PrefixGroup> groups, MakeSharedPrefix(wanted));
  ServePhase* const phase = BeginPhase(NameOfPhase(reuse, alone, settings_.load));
  phase->reuse = reuse;
  phase->alone = alone;
  for (const PrefixGroup& group : groups) EMS_RETURN_IF_ERROR(Prime(group));
  std::vector<ServeRequest> requests;
  for (size_t i = 0; requests.size() < wanted.prompts; ++i) {
    for (const PrefixGroup& group : groups) {
      if (i >= group.prompts.size()) continue;
      requests.push_back(Request(group.prompts[i], settings_.output_tokens));
      phase->stored_tokens += group.shared_tokens;
    }
  }
  LoadSettings load = alone ? LoadSettings{} : settings_.load;
  const size_t wave = alone ? 1 : kWavesPerPlace * load.concurrency;
  for (size_t at = 0; at < requests.size(); at += wave) {
    ++load.seed;
    Wave(std::span(requests).subspan(at, std::min(wave, requests.size() - at)), load,
         &phase->sides);
    if (stopped_()) return Interruption();
  }
  return OkStatus();
}

Result<ServeResults> ServeBench::Run(const std::function<void(const std::string&)>& on_phase) {
  EMS_CHECK(!sides_.empty());
  on_phase_ = on_phase;
  results_ = {};
  EMS_RETURN_IF_ERROR(WarmUp());
  EMS_RETURN_IF_ERROR(Chat());
  for (const double reuse : settings_.reuses) {
    EMS_RETURN_IF_ERROR(SharedPrefix(reuse, true));
    EMS_RETURN_IF_ERROR(SharedPrefix(reuse, false));
  }
  return std::exchange(results_, {});
}

}  // namespace ems::bench
