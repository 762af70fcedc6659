#pragma once
// One job of a version of a model in virtual time: the controller's side of it as it is, servers
// that bring blocks in, and a network. Servers crash and come back as other processes, leave, join,
// fail for a while or for good, fall silent and lose blocks again; views reach them late, reports
// are lost, doubled and overtaken. The same options give the same run.
//
// What must hold: the job ends by its deadline; it is done only when every server of the view has
// every block that the view gives it; it fails early only by errors of processes that are there;
// and each server that has failed is named.
#include <cstdint>
#include <string>
#include <vector>

#include "mp_controller/models/pull_job.h"

namespace ems::simulation {

struct JobOptions {
  uint64_t seed = 1;
  int servers = 4;
  uint32_t blocks = 40;
  int faults = 6;
  controller::JobRules rules = {};
};

struct JobOutcome {
  std::string violation;  // empty: every rule held
  int state = 0;          // v1::PullState of the job
};

JobOutcome SimulateJob(const JobOptions& options);

// Switches off the rule of this name; false: there is none.
bool BreakJobRule(const std::string& rule, controller::JobRules* rules);
std::vector<std::string> BreakableJobRules();

}  // namespace ems::simulation
