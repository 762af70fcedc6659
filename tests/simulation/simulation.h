#pragma once
// A whole cluster in virtual time: one controller, servers and clients, and what may befall them.
// The same options give the same run.
//
// What must hold after every event: one server at a time takes Puts for a slot; nobody reads a
// value that an acknowledged Put or Remove has replaced (but of copies of a disk, which may be
// old); view numbers grow; the history ends only when an operator says so; no server forgets a view
// that it acted upon, or installs another one of its number; who stopped in order counts as
// stopped; servers of other clusters get nothing, take nobody's name and lose nothing. And at the
// end, when nothing is broken any more: every server serves.
#include <cstdint>
#include <string>
#include <vector>

#include "cluster/control_rules.h"
#include "common/clock.h"

namespace ems::simulation {

enum class FaultKind {
  kServerCrash,
  kServerLosesDisk,
  kServerStops,
  kServerPauses,
  kDiskHangs,
  kDiskFails,
  kServerCutOff,        // from the controller, both ways
  kServerHearsNothing,  // of the controller, but is heard
  kServersCut,          // one from another
  kServerAlone,         // from everybody but clients
  kServerMoves,         // cut off; a process of its name starts on another machine
  kBadWeather,
  kControllerCrash,
  kControllerPauses,
  kStranger,            // a process that belongs elsewhere registers and sends a heartbeat
  kForeignServer,       // a server with the disk of another cluster and the name of a member
  kControllerRestored,  // from an older copy of its store
  // Not by chance alone, but as MakeFaults says.
  kMachineCrashes,   // and boots
  kMachineCopied,    // the copy starts while the server goes on
  kStoreFails,       // the controller's
  kServerDrained,    // by an operator, who cancels it later
  kServerStopsSoon,  // says so, so that its slots go to others, and then stops in order
};

struct Fault {
  Duration at;  // after the start
  FaultKind kind = FaultKind::kServerCrash;
  int target = 0;  // which server; modulo their number
  int other = 0;
  Duration lasts{};
  std::string ToText() const;
};

struct Options {
  uint64_t seed = 1;
  int servers = 4;
  int faults = 8;
  ControlRules rules = {};
  bool forwards = false;  // what slots had before they moved is asked for; values are evicted
  bool migrates = false;  // with `forwards`: also without being asked for
};

struct Outcome {
  std::string violation;  // empty: every rule held
  Duration at{};
  uint64_t served = 0;  // calls of clients
};

// What befalls the cluster of these options.
std::vector<Fault> MakeFaults(const Options& options);
Outcome Simulate(const Options& options, const std::vector<Fault>& faults);
// As few of the faults as still break a rule. Cost: one run for each fault, at least.
std::vector<Fault> Minimise(const Options& options, std::vector<Fault> faults);

// Switches off the rule of this name; false: there is none. BreakableRules lists them.
bool Break(const std::string& rule, ControlRules* rules);
std::vector<std::string> BreakableRules();

}  // namespace ems::simulation
