#pragma once
// The fence between a store and a load of another word, for protocols in which each of two sides
// stores a word and then looks at the other's: at least one of them finds what the other stored.
//
// Not inline, so that a test that models memory can put a function of its own in its place when it
// is linked (tests/mp_sdk/hazard_reorder_test.cc). The call is nothing beside the fence.

namespace ems {

// Whatever this thread has stored is visible to everybody before it loads anything more. Partner:
// the same call on the other side. Cost: about 10 ns.
void FullFence();

}  // namespace ems
