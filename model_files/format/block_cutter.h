#pragma once
// Cuts the files of a model into blocks, the units that are stored, deduplicated, routed and
// loaded. A pure function of the files' tensor tables, made so that two versions of a model agree
// on as many blocks as possible.
//
// The rules, for each file in the order of its bytes:
//  1. What lies before the first tensor (the header) is a block of its own: it changes with any
//  tensor.
//  2. A tensor owns its bytes and the padding behind it, up to the next tensor.
//  3. A large tensor, of kBlockBytesMin or more, shares no block with others: it is cut every
//  block_bytes from its own
//     beginning, and its last block ends with it, however short. So nothing that happens to its
//     neighbours, where it lies in the file, or which file it is in, changes its blocks.
//  4. A run of small tensors is gathered: a block closes when it has kBlockBytesMin or more and the
//  next tensor's name
//     is an anchor (one name in four, by hash), at kGatheredBytesMax in any case, and where the run
//     ends. A plain "close at kBlockBytesMin" would move every later boundary of the run when one
//     tensor is inserted; anchors are the same names in both versions, so the boundaries meet again
//     after a few tensors.
//  5. A file without a table is cut every block_bytes.
//
// The price of rule 3: norms between two matrices are a small block of their own. That costs an
// object of some KB per such place, and saves rewriting a matrix of MBs for each changed norm.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "model_files/format/tensor_table.h"

namespace ems::model {

inline constexpr uint64_t kBlockBytesMin = 64 * kKiB;
inline constexpr uint64_t kBlockBytesMax = 64 * kMiB;
inline constexpr uint64_t kBlockBytesDefault = 16 * kMiB;
inline constexpr uint64_t kGatheredBytesMax =
    8 * kBlockBytesMin;                            // or block_bytes, if that is less
inline constexpr uint64_t kBlocksMax = 4'000'000;  // of one model: 61 TiB of default blocks

struct CutFile {
  std::string_view path;  // relative, as the manifest has it; names the file in routes and messages
  uint64_t bytes = 0;
  const TensorTable* table =
      nullptr;  // as a parser made it, outlives the call; null: an opaque file
};

struct BlockSpan {
  uint32_t file = 0;    // index into the files given
  uint64_t offset = 0;  // from the file's start
  uint64_t bytes = 0;   // 1 .. block_bytes
  // 32 hexadecimal digits that decide which server holds the block: a hash of the first tensor's
  // name and the piece's number in it; of the path and the piece's number for headers and opaque
  // files. Free of offset, and for tensors of the file, so that equal bytes of two versions are
  // looked for, and found, on one server. Not unique, and no identity.
  std::string route;
  friend bool operator==(const BlockSpan&, const BlockSpan&) = default;
};

// Every byte of every file is in exactly one block; blocks are in the order of files and offsets.
// An empty file has none. Errors: kInvalidArgument    block_bytes outside kBlockBytesMin ..
// kBlockBytesMax, or a table that does not fit its file
//         kResourceExhausted  more than kBlocksMax blocks
// Cost: O(tensors + blocks). Threading: pure.
Result<std::vector<BlockSpan>> CutIntoBlocks(std::span<const CutFile> files,
                                             uint64_t block_bytes = kBlockBytesDefault);

}  // namespace ems::model
