#pragma once
// Requests that engines send to a context cache, made up: each is a Trace to be replayed, round
// after round.
//
//   long-doc-qa  documents that are asked about again and again, each time another question
//   chat         users behind one system prompt, whose conversations grow turn by turn
//   random       prompts that have nothing in common: what the cache costs where it cannot help
//   overflow     as long-doc-qa, but 5 % more than the cache holds, in turn: an LRU's worst case
//   popular      four times as many documents, twice what the cache holds, some asked about more
//   often
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/trace/trace_reader.h"
#include "common/status.h"

namespace ems::bench {

struct WorkloadSettings {
  uint64_t rounds = 4;
  uint64_t prompts = 16;            // documents, users or prompts a round
  uint64_t prompt_tokens = 16'384;  // of a document, of a random prompt
  uint64_t shared_tokens = 4'096;   // of the system prompt
  uint64_t turn_tokens = 1'024;     // a question, or a turn with its answer
  uint64_t seed = 1;
};

struct Workload {
  std::string name;
  Trace trace;
  uint64_t requests_per_round = 0;
  uint64_t capacity_blocks = 0;  // what the cache is to hold
};

// Names in the order of the list above.
const std::vector<std::string>& WorkloadNames();

// Cost: O(block references). Block ids of different workloads never meet.
// Errors: kInvalidArgument  an unknown name, or numbers that make more than a million requests or
// 50 million references
Result<Workload> MakeWorkload(std::string_view name, const WorkloadSettings& settings);

}  // namespace ems::bench
