#pragma once
// What was read for versions whose job ended before their files were checked: the controller does
// not know it, and the next job is not to read it again.
//
// Bound: kDigestsMax digests; beyond it what was kept first goes.
#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "ems_model/format/manifest.h"

namespace ems::server {

// Threading: caller locks.
class FoundBlocks final {
 public:
  static constexpr size_t kDigestsMax = 1'000'000;  // 36 bytes each

  // Blocks of a file that has not been checked, and in which round of reads that was.
  struct File {
    uint32_t file = 0;
    uint64_t started = 0, round = 0;  // as v1::FileCheck
    std::vector<std::pair<uint32_t, model::BlockDigest>> digests;
  };

  explicit FoundBlocks(size_t digests_max = kDigestsMax) : digests_max_(digests_max) {}

  // Of a version of which nothing is kept.
  void Keep(uint32_t model, std::vector<File> files);
  // Those of a version, which are not kept any more.
  std::vector<File> Take(uint32_t model);
  // Other versions than these are gone.
  void Retain(const std::set<uint32_t>& models);

 private:
  struct Model {
    uint32_t id = 0;
    std::vector<File> files;
    size_t digests = 0;
  };
  const size_t digests_max_;
  std::deque<Model> models_;  // the one kept first comes first
  size_t digests_ = 0;        // of all
};

}  // namespace ems::server
