#pragma once
// For a load that reads a file from the source itself, before anybody has checked it: reads all of
// the file once, compares it with the sum that the source gives, and keeps the digests of its
// blocks, which later reads are then compared with.
//
// Invariant: a digest is given only of a file whose bytes had their sum; a file that could not be
// had is read by nobody else of the same load. Bound: a block's bytes while a file is read, 32
// bytes a block after.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "model_files/format/manifest.h"
#include "model_files/source/weight_source.h"

namespace ems::model::internal {

// Threading: thread-safe. Several who ask for blocks of one file wait for one of them.
class FileSurvey final {
 public:
  // The parameters of the load that asks; the same for all that ask at a time.
  struct Load {
    std::function<Result<WeightSource*>()> source;
    std::function<bool()> over;  // it has failed, say: nobody waits for the file any more
    Deadline deadline;
    std::atomic<uint64_t>* source_bytes;  // grows by what was read
  };

  // Must outlive it.
  explicit FileSurvey(const Manifest* manifest) : manifest_(manifest) {}

  // Another load begins: what could not be had is tried again. While nobody asks. Where the source
  // did not answer, this load tries again, kOutage later.
  void Begin();
  // Of a block whose file has a sum. Errors: those of the source    kDataLoss  the file is not what
  // the source says, kFileReadsMax times    kUnimplemented  no MD5 here    kCancelled  the load is
  // over    kDeadlineExceeded
  // Cost: for the first block of a file, all of its bytes from the source. A thread that waits for
  // it, or reads it, looks whether the load is over every kLook, or before each block.
  Result<BlockDigest> DigestOf(uint32_t block, const Load& load);

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(100);
  static constexpr Duration kOutage = std::chrono::seconds(1);
  using Digests = std::map<uint32_t, BlockDigest>;  // by block
  struct File {
    bool busy = false;
    Digests digests;  // empty: not known yet
    Status failed;    // in this load
    TimePoint failed_at{};
  };
  static Status GoesOn(const Load& load);
  Result<Digests> Read(uint32_t file, const Load& load) const;

  const Manifest* const manifest_;
  Guarded<std::map<uint32_t, File>> files_;
  std::condition_variable done_;
};

}  // namespace ems::model::internal
