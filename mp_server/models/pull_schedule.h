#pragma once
// What a worker does next: bring in a block of some version, or add blocks that are here to the sum
// of their file.
//
// Neither kind can starve the other, whatever it waits for. A check is given blocks that are here
// (ModelPull::NextCheck): whose turn it is not yet holds no worker, so no check waits for a pull. A
// pull waits for its source, the disk or room, never for a check. And each kind leaves workers to
// the other: checks, which wait for the controller, have half of them at most; pulls from one
// origin have pulls_max of 5/4 pulls_max, and the last worker goes to an origin that has none.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "mp_server/models/model_pull.h"

namespace ems::server {

// Threading: caller locks.
class PullSchedule final {
 public:
  using Pulls = std::map<uint32_t, std::unique_ptr<ModelPull>>;  // by model
  // One of the two, or nothing: there is nothing to do.
  struct Work {
    std::optional<ModelPull::CheckTask> check;
    std::optional<ModelPull::Task> pull;
    explicit operator bool() const { return check || pull; }
  };

  // `pulls_max` of one origin, at least 1.
  explicit PullSchedule(uint32_t pulls_max) : pulls_max_(pulls_max) {}

  // More than one origin may have: a source that does not answer holds its readers for minutes, and
  // others are to go on meanwhile.
  uint32_t workers() const { return pulls_max_ + (pulls_max_ + 3) / 4; }
  uint32_t checks_max() const { return workers() / 2; }

  // Of the version with the highest priority; of those, the one that has been known longest.
  Work Next(const Pulls& pulls);
  // A worker is done with what it was given, whatever has become of the version.
  void PullEnded(const std::string& origin);
  void CheckEnded();

 private:
  bool OneIsLeft() const;

  const uint32_t pulls_max_;
  std::map<std::string, uint32_t> busy_;  // workers by origin
  uint32_t checking_ = 0;                 // workers
};

}  // namespace ems::server
