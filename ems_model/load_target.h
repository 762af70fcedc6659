#pragma once
// The interface to the destination of a loaded version: memory, files, tensors. A load asks the
// target which parts of each block it wants and where they go, copies them there, and reports each
// block once it is verified and in place.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "model_files/format/tensor_table.h"

namespace ems::model {

struct LoadFile {
  std::string_view path;  // below the source
  uint64_t bytes = 0;
  // What its header says; null: no tensors, or the target has not asked for tables.
  const TensorTable* table = nullptr;
};

// Bytes [offset, offset + into.size()) of a file go to `into`.
struct LoadRange {
  uint64_t offset = 0;
  MutableBytes into;
};

// Blocks come in any order, each one whole in one file: [offset, offset + bytes).
// Threading: Begin, Wants and End on the thread that loads; Place and Arrived on several threads at
// once, for different blocks.
class LoadTarget {
 public:
  virtual ~LoadTarget() = default;

  // Whether Begin gets the tensor tables of *.safetensors and *.gguf files: they are read first.
  virtual bool wants_tables() const { return false; }
  // Once, before all else. `files`, in the manifest's order, live until End has returned.
  virtual Status Begin(std::span<const LoadFile> files) = 0;
  // How many bytes of a block are wanted; 0: it is not read.
  virtual uint64_t Wants(uint32_t file, uint64_t offset, uint64_t bytes) = 0;
  // Appends where the wanted bytes of a block go, in the order of offsets, without overlap. The
  // memory must stay until the block has arrived or the load has ended; until it has arrived its
  // contents are undefined. Asked again for a block that has to be read again.
  virtual Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
                       std::vector<LoadRange>* ranges) = 0;
  // The wanted bytes of a block are in place and verified. Once a block; an error ends the load.
  virtual Status Arrived(uint32_t file, uint64_t offset, uint64_t bytes) = 0;
  // Once, after all else and if Begin was called: all has arrived, or why not. What it returns for
  // a load that went well is what the load returns.
  virtual Status End(const Status& load) = 0;
};

}  // namespace ems::model
