#include "bench/trace/trace_maker.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/check.h"

namespace ems::bench {
namespace {

constexpr uint64_t kDocumentBlocksMax = 32;
constexpr uint64_t kRequestsPerDocument = 5;
constexpr uint64_t kGapMs = 1000;
constexpr uint64_t kOutputTokens = 128;

// Numbers by seed, the same with every standard library. Threading: one thread.
class Dice final {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // 0 … sides - 1
  uint64_t Below(uint64_t sides) { return random_() % sides; }
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }  // [0, 1)

 private:
  std::mt19937_64 random_;
};

// Shares of the ranks up to each: [i] = Σ (j + 1)^-kSteepness, j ≤ i, of all.
std::vector<double> CumulatedShares(uint64_t ranks) {
  std::vector<double> shares(ranks);
  double sum = 0;
  for (uint64_t i = 0; i < ranks; ++i)
    shares[i] = sum += std::pow(static_cast<double>(i + 1), -kSteepness);
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

std::vector<std::string> TraceShapeNames() { return {"steep", "cyclic"}; }

TraceShape TraceShapeOf(std::string_view name) {
  EMS_CHECK(name == "steep" || name == "cyclic", "{}", name);
  return name == "steep" ? TraceShape::kSteep : TraceShape::kCyclic;
}

Trace MakeTrace(TraceShape shape, uint64_t requests, uint64_t seed) {
  EMS_CHECK(requests > 0);
  Dice dice(seed);
  std::vector<std::vector<uint64_t>> documents(
      std::max<uint64_t>(1, requests / kRequestsPerDocument));
  uint64_t names = 0;
  for (std::vector<uint64_t>& document : documents) {
    document.resize(1 + dice.Below(kDocumentBlocksMax));
    for (uint64_t& block : document) block = names++;
  }
  const std::vector<double> shares = CumulatedShares(documents.size());
  const auto next = [&](uint64_t request) -> uint64_t {
    if (shape == TraceShape::kCyclic) return request % documents.size();
    const auto rank = std::upper_bound(shares.begin(), shares.end(), dice.Uniform());
    return std::min<uint64_t>(static_cast<uint64_t>(rank - shares.begin()), documents.size() - 1);
  };
  Trace trace;
  std::vector<bool> asked(documents.size());
  for (uint64_t i = 0; i < requests; ++i) {
    const uint64_t document = next(i);
    if (!asked[document]) trace.unique_blocks += documents[document].size();
    asked[document] = true;
    TraceRequest request{.timestamp_ms = i * kGapMs,
                         .input_tokens = (documents[document].size() + 1) * kTraceBlockTokens,
                         .output_tokens = kOutputTokens,
                         .blocks = documents[document]};
    request.blocks.push_back(names++);
    trace.block_references += request.blocks.size();
    trace.input_tokens += request.input_tokens;
    trace.request_blocks_max = std::max(trace.request_blocks_max, request.blocks.size());
    trace.requests.push_back(std::move(request));
  }
  trace.unique_blocks += requests;
  return trace;
}

}  // namespace ems::bench
