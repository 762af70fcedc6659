#pragma once
// Ctrl-C and SIGTERM end a bench between two rounds, so that it can still tidy up behind itself; a
// second one ends it at once.
#include "common/status.h"

namespace ems::bench {

// Call once, before the work starts.
void CatchInterrupts();
// True once a signal has come. Cost: one relaxed load.
bool Interrupted();
// kCancelled: what a measurement returns then.
Status Interruption();

}  // namespace ems::bench
