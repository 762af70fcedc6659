#pragma once
// The disk's own limit: fio as a child process, on a file beside the one that is measured.
//
// Invariant: the process has ended when Run returns, also after Ctrl-C.
#include <cstdint>
#include <string>

#include "common/status.h"

namespace ems::bench {

struct FioJob {
  bool write = true;          // sequentially; otherwise reads at random, each block once
  std::string path;           // of a file of offset_bytes + part_bytes or more
  uint64_t offset_bytes = 0;  // where the part of it that is used begins
  uint64_t part_bytes = 0;
  uint64_t total_bytes = 0;  // how much is moved; at most part_bytes
  uint64_t block_bytes = 0;  // of each operation
  uint32_t depth = 1;        // operations under way
};

struct FioFigures {
  double gb_per_second = 0;
  double p50_us = 0, p99_us = 0;  // of an operation, from submission to completion
  double cpu_per_gb = 0;          // CPU seconds for each 1e9 bytes
  uint64_t bytes = 0;
  uint64_t counted_bytes = 0;  // what it has added to this process's WrittenBytes
};

// What fio's --output-format=json says of one job. Errors: kDataLoss  it is not that
Result<FioFigures> ParseFio(const std::string& json, bool write);

// Makes a file with all its bytes allocated, and nothing written to it.
// Errors: kResourceExhausted  no space    kUnavailable  the file system cannot
Status PreallocateFile(const std::string& path, uint64_t bytes);

// Threading: one thread (the child's life is tied to it).
class FioPeer final {
 public:
  // Nothing is started yet. `folder`: where its output goes. `missing()` says whether it can be.
  explicit FioPeer(std::string folder);
  // Why there is no fio; empty when there is.
  const std::string& missing() const { return missing_; }
  // "io_uring": the first of io_uring, libaio and psync that worked here; psync ignores the depth.
  const std::string& engine() const { return engine_; }
  // Direct I/O, from start to end. Blocks.
  // Errors: kNotFound  not installed    kUnavailable  it failed, or was interrupted
  Result<FioFigures> Run(const FioJob& job);

 private:
  Result<FioFigures> RunWith(const std::string& engine, const FioJob& job);

  const std::string folder_;
  std::string program_, missing_, engine_;
};

}  // namespace ems::bench
