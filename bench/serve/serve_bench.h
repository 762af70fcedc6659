#pragma once
// A serving loop, or two of them side by side, under made-up conversations and prompts that begin
// alike.
//
// The sides answer the same requests in turns, first one, then the other, then the other way round:
// what the machine does meanwhile hits both. Every answer is compared between the sides, greedy
// ones and sampled ones with a seed. Bound: a request ends with its client's timeout.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/serve/serve_client.h"
#include "bench/serve/serve_figures.h"
#include "bench/serve/serve_load.h"
#include "bench/serve/serve_workload.h"
#include "common/status.h"

namespace ems::bench {

// The cache of a side: known to be absent, required, or unknown.
enum class SideCache { kNone, kExpected, kUnknown };

struct ServeSide {
  std::string name;
  ServeClient client;
  SideCache cache = SideCache::kUnknown;
};

struct ServeSettings {
  ChatSettings chat;            // no rounds: no conversations
  SharedPrefixSettings prefix;  // its reuse is taken from `reuses`
  std::vector<double> reuses = {0.5, 0.9};
  uint64_t warmup_prompts = 0;  // of each side, before anything counts
  uint32_t chat_output_tokens = 32;
  uint32_t output_tokens = 16;
  LoadSettings load;  // of conversations and, after one at a time, of prompts that begin alike
  // Nobody else's: blocks of other runs are not seen.
  std::string cache_salt;
};

// A part of the run, the same requests for each side.
struct ServePhase {
  std::string name;  // "chat", "reuse 50 %, one at a time", …
  double reuse = 0;  // 0: chat
  // Of all its prompts, tokens that were stored before: whole blocks.
  uint64_t stored_tokens = 0;
  bool alone = true;  // one request at a time: no queueing
  std::vector<ServeFigures> sides;
};

// One round of all conversations.
struct ServeRound {
  uint64_t prompt_tokens = 0;
  uint64_t reusable_tokens = 0;  // that an earlier prompt had, in whole blocks
  std::vector<ServeFigures> sides;
};

struct ServeResults {
  std::vector<ServePhase> phases;
  std::vector<ServeRound> rounds;
  std::vector<std::string> differences;  // answers that are not the same on both sides
};

// Threading: one thread; loads have theirs.
class ServeBench final {
 public:
  // One side or two; the first is the one that others are compared with. `stopped`: ends the run
  // between requests.
  ServeBench(ServeSettings settings, std::vector<ServeSide> sides, std::function<bool()> stopped)
      : settings_(std::move(settings)), sides_(std::move(sides)), stopped_(std::move(stopped)) {}

  // `on_phase` is told of each part as it begins. Requests that fail are counted in the figures.
  // Errors: kInvalidArgument  settings that make no workload    kCancelled  stopped
  // kNotFound  a side that has to cache does not    those of a client  a prefix could not be
  // stored, a warm-up failed
  Result<ServeResults> Run(const std::function<void(const std::string&)>& on_phase);

 private:
  ServeRequest Request(std::string prompt, uint32_t output_tokens);
  // Asks all sides; the outcomes of each, by side and request.
  std::vector<std::vector<ServeOutcome>> Wave(std::span<const ServeRequest> requests,
                                              const LoadSettings& load,
                                              std::vector<ServeFigures>* figures);
  // Adds the answers that differ to results_.
  void Compare(std::span<const ServeRequest> requests,
               const std::vector<std::vector<ServeOutcome>>& outcomes);
  Status WarmUp();
  Status Chat();
  Status SharedPrefix(double reuse, bool alone);
  Status Prime(const PrefixGroup& group);
  Status StoreOn(const ServeSide& side, const PrefixGroup& group);
  ServePhase* BeginPhase(std::string name);

  const ServeSettings settings_;
  const std::vector<ServeSide> sides_;
  const std::function<bool()> stopped_;
  std::function<void(const std::string&)> on_phase_;
  ServeResults results_;
  uint64_t requests_ = 0;  // so far
  uint64_t waves_ = 0;
};

}  // namespace ems::bench
