#pragma once
// Checks one after the other, each within a time: what may block for ever, as a disk that hangs,
// has a thread of its own.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/thread_pool.h"
#include "tools/emsctl/doctor/finding.h"

namespace ems::emsctl {

// Threading: one thread.
class TimedChecks final {
 public:
  explicit TimedChecks(Duration timeout) : timeout_(timeout) {}
  // Waits for what is stuck: a program that cannot wait ends before.
  ~TimedChecks() = default;
  TimedChecks(const TimedChecks&) = delete;
  TimedChecks& operator=(const TimedChecks&) = delete;

  void Add(Finding finding) { findings_.push_back(std::move(finding)); }
  void AddAll(Findings findings);
  // Adds what `check` finds, or after the timeout a FAIL. `check` owns what it uses: it may go on.
  void Run(const std::string& name, std::function<Finding()> check);

  const Findings& findings() const { return findings_; }
  // A check has not returned.
  bool stuck() const { return stuck_; }

 private:
  const Duration timeout_;
  Findings findings_;
  bool stuck_ = false;
  std::vector<Thread> threads_;
};

}  // namespace ems::emsctl
