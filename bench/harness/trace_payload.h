#pragma once
// The bytes of a block in a replay: each is a function of (block id, offset), so that any read
// shows by itself whether it is this block, whole.
#include <cstdint>

#include "common/bytes.h"

namespace ems::bench {

// Cost: about 10 GB/s.
void FillBlock(uint64_t block_id, MutableBytes bytes);

// Overwrites a word of each page of each value, so that a read that copies nothing cannot pass for
// one that does. The values have `value_bytes` each and lie one after the other in `bytes`.
void Spoil(MutableBytes bytes, uint64_t value_bytes);

// How many bytes differ from those of the block. Cost: as FillBlock while there are none.
uint64_t CountWrongBytes(uint64_t block_id, ConstBytes bytes);

}  // namespace ems::bench
