#pragma once
// The pool and the controller, as a load sees them: interfaces, so that a load can be tested
// without either.
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "ems_model/model_info.h"
#include "model_files/format/manifest.h"
#include "mp_sdk/options.h"

namespace ems::model {

// Threading: thread-safe.
class BlockPool {
 public:
  virtual ~BlockPool() = default;
  // As Client::MultiGet and Client::MultiGetRange.
  virtual std::vector<Result<uint64_t>> Read(std::span<const GetItem> items, Duration timeout) = 0;
  virtual std::vector<Status> ReadRanges(std::span<const RangeItem> items, Duration timeout) = 0;
  // Whether the servers of these routes answer: the first error, if any.
  virtual Status Probe(std::span<const BlockRoute> routes, Duration timeout) = 0;
  // Another number whenever others keep the blocks: what was there may not be there any more.
  virtual uint64_t view() = 0;
};

struct DigestNews {
  std::vector<std::pair<uint32_t, BlockDigest>> digests;  // from the `since`-th known one on
  uint32_t known = 0;                                     // by now
  JobInfo job;
};

// The controller's data about the version. Threading: one thread.
class LoadCatalog {
 public:
  virtual ~LoadCatalog() = default;
  // Errors: kNotFound  the version has been removed    kUnavailable, kDeadlineExceeded  no
  // controller
  virtual Result<DigestNews> Digests(uint32_t since, Duration wait, Deadline deadline) = 0;
  // Begins a job, or joins the one that is running.   Errors: as Digests
  virtual Result<JobInfo> StartJob(uint32_t priority, Deadline deadline) = 0;
};

}  // namespace ems::model
