#pragma once
// Ctrl-C and SIGTERM end a bench between two rounds, so that it can still tidy up behind itself; a
// second one ends it at once.

namespace ems::bench {

// Call once, before the work starts.
void CatchInterrupts();
// True once a signal has come. Cost: one relaxed load.
bool Interrupted();

}  // namespace ems::bench
