#pragma once
// Models made up for a bench: safetensors files with random weights, of any size.
#include <cstdint>
#include <string>

#include "common/status.h"

namespace ems::bench {

struct MadeModel {
  uint64_t bytes = 0;  // of all files
  uint64_t hash = 0;   // Hash64 of all files, one after the other, by path
};

// Writes `bytes` of weights, in F16 tensors of 4 MiB, as two shards with their index and a
// config.json, into `folder`, which must exist. Equal arguments make equal files. Errors: kInternal
// the disk refuses
Result<MadeModel> MakeModel(const std::string& folder, uint64_t bytes, uint64_t seed);

}  // namespace ems::bench
