#pragma once
// Batches of the drop-in SDK from the arguments of its calls, all of them checked: nothing is
// submitted of a call that is refused. Refusals are TypeError, ValueError and OverflowError. The
// GIL is held.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ems_context/kv_layout.h"
#include "integrations/batches/drop_in_pool.h"
#include "integrations/python/src/context_bindings.h"

namespace ems::python {

// The layouts that registered tensors may have. One that was stated is the only one, and a block
// may be any of its slots. Otherwise a block is one whole page, and the first call decides between
// layouts whose pages differ. Threading: the GIL.
class PyLayouts final {
 public:
  using Layout = std::shared_ptr<const context::KvLayout>;
  // `layouts`: PyLayout, one if it is stated. Raises ValueError  none
  PyLayouts(pybind11::list layouts, bool is_stated);
  // The place in the list of a layout of Choose.
  size_t NumberOf(const Layout& layout) const;
  // The layout of a call with so many layer groups, whose first block has so many tokens. Raises
  // ValueError  no layout has such pages, or an earlier call has shown another
  Layout Choose(size_t groups, int64_t tokens) const;
  // Calls from now on have this batch's layout. Raises ValueError  its blocks are not one page each
  void Prove(const batches::DropInBatch& batch);

 private:
  bool IsPossible(const Layout& layout) const { return proven_ == nullptr || proven_ == layout; }
  [[noreturn]] void Refuse(std::string_view why) const;

  const pybind11::list held_;
  std::vector<Layout> may_be_;
  Layout proven_;
  const bool is_stated_;
};

void SetOptions(bool is_load, int64_t timeout_ms, bool local_only, batches::DropInBatch* batch);
// Where blocks lie: by chunk_descs when it is given, otherwise by slot_mapping and offsets.
batches::DropInBatch SlotBatch(bool is_load, PyLayouts& layouts, pybind11::handle slot_mapping,
                               pybind11::handle hashes, pybind11::handle offsets,
                               pybind11::handle chunk_descs, int64_t timeout_ms, bool local_only);
// `keys`: [blocks] of str, or of (distribute key, attribute key). `values`: [blocks] of lists of
// (address, length).
batches::DropInBatch PointerBatch(bool is_load, const pybind11::list& keys,
                                  const pybind11::list& values, int64_t timeout_ms,
                                  bool local_only);
// Names alone, for a question. Raises as the others.
std::vector<batches::DropInHash> HashesOf(pybind11::handle object);

}  // namespace ems::python
