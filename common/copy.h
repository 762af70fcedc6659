#pragma once
// Copies the bytes of values, and checksums what was copied, in the way that this machine does
// fastest.
//
// A large copy may go through the CPU's caches, or past them with streaming stores, which spare the
// memory a read of each line that is written. Which one is faster depends on the machine: from 0.7
// to 1.6 times has been seen. So it is measured while copying: a MiB of every 32 is a match between
// the ways.
#include <cstddef>
#include <cstdint>

#include "common/bytes.h"
#include "common/checksum.h"

namespace ems {

// From here on a copy counts as large.
inline constexpr size_t kLargeCopyBytes = 128 * kKiB;

// Copies into.size() bytes and, unless `hasher` is null, updates it with the copy: what is hashed
// is what lies in `into`, even if `from` is written meanwhile. Ranges must not overlap. Ordered
// before any later release store of this thread. Threading: thread-safe. Cost: no allocation.
void CopyValue(MutableBytes into, const std::byte* from, PieceHasher* hasher);

}  // namespace ems
