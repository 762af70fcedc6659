#pragma once
// Measures the distribution of a trace's keys over the servers: one small value for each block, in
// a namespace without a quota. A quota is split between the servers by their capacity, so with one
// the bytes stored would show that split, not the distribution of the keys.
//
// Bound: kPlacementKeysMax keys of kPlacementValueBytes.
#include <cstdint>
#include <string>
#include <vector>

#include "bench/trace/trace_reader.h"
#include "common/status.h"
#include "mp_sdk/client.h"

namespace ems::bench {

// So many that chance moves no server of three by more than 1.8 % (three standard deviations).
inline constexpr uint64_t kPlacementKeysMax = 60'000;
inline constexpr uint64_t kPlacementValueBytes = 256;

struct PlacedBytes {
  std::string name;
  uint64_t capacity_bytes = 0;  // DRAM that the server gives to the pool
  uint64_t bytes = 0;           // of values that it holds
};

// Stores the first blocks of `trace` through `client`, whose namespace `name_space` is empty and
// has no quota, and asks each server of the view what it holds. `block_bytes`: part of the keys, as
// in a replay. Errors: those of Save and ServerStats; kInternal  stored and held bytes differ
Result<std::vector<PlacedBytes>> MeasurePlacement(const Trace& trace, uint64_t block_bytes,
                                                  const std::string& name_space, Client* client);

// The most that a server holds above its share by capacity, in percent of that share; not a number
// without bytes or with fewer than two servers.
double AboveSharePercent(const std::vector<PlacedBytes>& servers);

}  // namespace ems::bench
