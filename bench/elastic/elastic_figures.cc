#include "bench/elastic/elastic_figures.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "bench/harness/figures.h"
#include "bench/trace/ideal_lru.h"

namespace ems::bench {

double WindowSums::HitPercent() const { return Percent(arrived_blocks, blocks); }

WindowSums SumOf(std::span<const RequestOutcome> requests, Window window) {
  WindowSums sums;
  for (size_t i = window.begin; i < std::min(window.end, requests.size()); ++i) {
    const RequestOutcome& one = requests[i];
    sums.blocks += one.blocks;
    sums.arrived_blocks += one.arrived_blocks;
    sums.wrong_bytes += one.wrong_bytes;
    sums.failed_gets += one.failed_gets;
    sums.failed_saves += one.failed_saves;
    if (one.load > Duration::zero()) sums.gets.Record(one.load);
  }
  return sums;
}

std::vector<double> HitPercentBySecond(std::span<const RequestOutcome> requests, uint64_t rate) {
  std::vector<double> seconds;
  for (size_t begin = 0; begin < requests.size(); begin += rate) {
    const WindowSums sums = SumOf(requests, {begin, begin + rate});
    seconds.push_back(sums.blocks == 0 ? std::nan("") : sums.HitPercent());
  }
  return seconds;
}

Trace TracePart(const Trace& trace, size_t begin, size_t end, uint64_t rate) {
  Trace part;
  std::unordered_set<uint64_t> seen;
  for (size_t i = begin; i < std::min(end, trace.requests.size()); ++i) {
    TraceRequest request = trace.requests[i];
    request.timestamp_ms = rate == 0 ? 0 : (i - begin) * 1000 / rate;
    part.block_references += request.blocks.size();
    part.input_tokens += request.input_tokens;
    part.request_blocks_max = std::max(part.request_blocks_max, request.blocks.size());
    seen.insert(request.blocks.begin(), request.blocks.end());
    part.requests.push_back(std::move(request));
  }
  part.unique_blocks = seen.size();
  return part;
}

std::vector<uint32_t> IdealHits(const Trace& trace, uint64_t capacity_bytes, uint64_t block_bytes,
                                std::span<const Loss> losses) {
  IdealLru lru(capacity_bytes, block_bytes);
  std::vector<uint32_t> hits;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    for (; !losses.empty() && losses.front().at_request <= i; losses = losses.subspan(1))
      lru.Lose(losses.front().lost);
    hits.push_back(static_cast<uint32_t>(lru.Request(trace.requests[i].blocks)));
  }
  return hits;
}

double HitPercentOf(const Trace& trace, std::span<const uint32_t> hits, Window window) {
  uint64_t blocks = 0, hit = 0;
  for (size_t i = window.begin; i < std::min(window.end, trace.requests.size()); ++i) {
    blocks += trace.requests[i].blocks.size();
    hit += hits[i];
  }
  return Percent(hit, blocks);
}

double BytesToMove(const DhtView& before, const DhtView& after,
                   const std::map<std::string, uint64_t>& held) {
  double bytes = 0;
  for (const NodeInfo& node : before.nodes()) {
    const auto holds = held.find(node.name);
    const NodeInfo* then = after.Find(node.id);
    if (holds == held.end() || then == nullptr || then->boot_id != node.boot_id) continue;
    uint64_t owned = 0, moved = 0;
    for (uint32_t i = 0; i < kSlotCount; ++i) {
      const SlotId slot(static_cast<uint16_t>(i));
      if (before.OwnerId(slot) != node.id) continue;
      ++owned;
      if (after.OwnerId(slot) != node.id) ++moved;
    }
    bytes += Share(moved, owned) * static_cast<double>(holds->second);
  }
  return bytes;
}

}  // namespace ems::bench
