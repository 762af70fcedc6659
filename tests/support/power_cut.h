#pragma once
// Power cuts without a machine: a daemon runs under power_loss.cc, is killed, and then its folder
// loses what a disk may lose that has only been promised what was synced.
//
// What may be lost. Of a file: all changes from some point on, the one before that point from a
// sector on, and of what was overwritten in place any sector of 512 bytes by itself. What was
// appended is there up to some length, as file systems with ordered data keep it. Of folders: all
// that was made, removed and renamed from some point on, unless each folder in question was synced.
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace ems::testing {

// For Daemon::Options: records what the daemon changes below `folder`, which has no slash at its
// end. The folder itself is nobody's to lose. `lost_syncs`: a glob of paths (* takes slashes, too)
// whose syncs count for nothing; empty: none.
std::vector<std::string> PowerLossEnvironment(const std::string& folder,
                                              const std::string& lost_syncs = "");

struct PowerCutOptions {
  enum class Loss : uint8_t { kNothing, kSome, kAll };
  Loss loss = Loss::kSome;  // of what was not synced
  uint64_t seed = 1;        // for kSome
};

struct PowerCutReport {
  uint64_t changes = 0;  // of files and folders, since the last cut
  uint64_t unsynced = 0;
  uint64_t lost = 0;  // of them, whole or in part
  std::string ToText() const;
};

// After the process has ended, however it has. What is left counts as synced from then on: call it
// before the next process works there. Nothing recorded is nothing lost.
// Cost: reads the log, which has the old bytes of every write.
// Errors: kDataLoss  the log cannot be read    kUnavailable  files that cannot be put back
Result<PowerCutReport> CutPower(const std::string& folder, const PowerCutOptions& options);

}  // namespace ems::testing
