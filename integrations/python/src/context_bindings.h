#pragma once
// `_ems.BlockHasher`, `_ems.KvLayout` and `_ems.ContextCache`. The GIL is free while a call is
// under way.
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ems_context/block_hash.h"
#include "ems_context/context_cache.h"
#include "ems_context/kv_layout.h"
#include "ems_context/paged_block.h"
#include "ems_context/paged_cache.h"

namespace ems::python {

struct PyHasher {
  context::BlockHasher hasher;
};

// A layout and the tensors that it speaks of. Threading: immutable; made and destroyed with the
// GIL.
struct PyLayout {
  std::shared_ptr<const context::KvLayout> layout;
  pybind11::object tensors;
};

// Threading: thread-safe. The client outlives the cache. In a child of fork() its connections are
// the parent's: each process would read the answers of the other.
struct PyCache {
  PyCache(std::shared_ptr<Client> used, const context::ContextCacheOptions& options,
          const context::PagedOptions& paging)
      : client(std::move(used)), store(client.get()), cache(&store, options), paged(paging) {}
  // Raises Unavailable in a child of fork(). The GIL is held.
  void CheckHere() const;

  const std::shared_ptr<Client> client;
  context::ClientBlockStore store;
  context::ContextCache cache;
  const context::PagedOptions paged;
  const pid_t owner = ::getpid();
};

// For each block, for each group, (start slot, tokens).
using PyRuns = pybind11::list;

// Blocks that have passed CheckBlocks. Shape: `runs` is [keys]. Raises InvalidArgument, OutOfRange.
std::vector<context::PagedBlock> BlocksOf(const PyLayout& layout, const pybind11::iterable& keys,
                                          const PyRuns& runs, context::SlotUse use);
// (leading blocks, [length, None for a miss, or an error])
pybind11::tuple AnswerOf(const context::LoadResult& result);

void BindContext(pybind11::module_& module);

}  // namespace ems::python
