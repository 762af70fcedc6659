#pragma once
// File descriptors: how many the process may have, and how many of them connections may take.
//
// Connections are the one use that strangers decide on. They must not take what the server needs
// to go on with: segments are created, the SSD tier's index opens files, clients attach.
#include <cstdint>

namespace ems::server {

// What a server needs beside connections and sessions: standard files, threads' polls and timers,
// the controller's channel, the HTTP endpoint. An idle one has 40.
constexpr uint64_t kDescriptorsBase = 96;
// The SSD tier's index: RocksDB's max_open_files, and some.
constexpr uint64_t kDescriptorsOfIndex = 272;
// A session of a client on the same host: its connection, its pages, memory that it registers.
constexpr uint64_t kDescriptorsPerSession = 4;

struct DescriptorBudget {
  uint64_t limit = 0;   // of the process
  uint64_t own = 0;     // kDescriptorsBase, two a memory segment, SSD regions
  uint64_t wanted = 0;  // with all connections and sessions that the configuration allows
  uint32_t connections_max = 0;
};

// Raises the soft limit to the hard one and returns it.
uint64_t RaiseDescriptorLimit();

// All `connections` when the limit is enough for everything, half of what is left beside `own`
// otherwise (the other half is for sessions), and never less than 8.
DescriptorBudget PlanDescriptors(uint64_t limit, uint64_t own, uint32_t connections,
                                 uint32_t sessions);

}  // namespace ems::server
