#pragma once
// A load that goes layer by layer: an engine computes layer i while the layers behind it arrive.
//
// Invariant: layers become ready in order. A block is in place up to a layer or it is not: what has
// gone missing at one layer is missing at all layers behind it.
#include <cstddef>
#include <memory>
#include <vector>

#include "common/submitted_call.h"
#include "ems_context/context_cache.h"

namespace ems::context {

// The blocks that are in place up to one layer, that one included.
struct LayerReady {
  size_t leading_blocks = 0;    // in place before the first that is not
  std::vector<size_t> missing;  // numbers of the blocks that are not, ascending
};

// The progress of a load by layers. Threading: thread-safe.
class LayerProgress final {
 public:
  LayerProgress(size_t layers, size_t blocks);
  size_t layers() const { return layers_; }
  size_t blocks() const { return blocks_; }
  // Layers below `ready` are done. Shape: `failed` lists blocks that have failed since the last
  // call; they count as missing from the layer that was next until now.
  void Advance(size_t ready, const std::vector<size_t>& failed);
  // The load is over: blocks that did not arrive as a whole are missing from the next layer on, and
  // all layers are done.
  void Close(const LoadResult& result);
  // False when the deadline passed first.
  bool WaitUntil(size_t layer, Deadline deadline);
  LayerReady At(size_t layer);
  size_t ready();

 private:
  struct State {
    size_t ready = 0;
    std::vector<size_t> missing_from;  // [blocks]: a layer; layers_: none
  };
  const size_t layers_;
  const size_t blocks_;
  Guarded<State> state_;
  std::condition_variable advanced_;
};

// Copies are handles on the same load. Dropping them does not end it: the tensors must live until
// Done(), or Cancel() has returned. Threading: thread-safe.
class LayerLoad final {
 public:
  LayerLoad(SubmittedCall<LoadResult> call, std::shared_ptr<LayerProgress> progress)
      : call_(std::move(call)), progress_(std::move(progress)) {}

  size_t layers() const { return progress_->layers(); }
  size_t blocks() const { return progress_->blocks(); }
  // Layers 0 … ready_layers() - 1 are done.
  size_t ready_layers() const { return progress_->ready(); }
  // Waits until `layer` of every block is in place or known to be missing.
  // Errors: kDeadlineExceeded  this wait's time is over, the load goes on    kOutOfRange  no such
  // layer. A load that failed or was cancelled is no error: its blocks are missing, and Result()
  // says why.
  ems::Result<LayerReady> WaitLayer(size_t layer, Deadline deadline) const;

  // As SubmittedCall. A block's result is ok when all its layers arrived. Cancel: behind the reads
  // of the layers that are on their way. Behind each of them that says it is over, all layers are
  // done.
  bool Done() const { return Wait(Deadline(TimePoint())); }
  bool Wait(Deadline deadline) const;
  LoadResult Result() const;
  void Cancel() const;

 private:
  // The call's outcome comes a moment before its layers are closed.
  void AwaitClosed() const;

  SubmittedCall<LoadResult> call_;
  std::shared_ptr<LayerProgress> progress_;
};

}  // namespace ems::context
