#include "ems_context/layer_load.h"

#include <algorithm>

#include "common/check.h"

namespace ems::context {

LayerProgress::LayerProgress(size_t layers, size_t blocks) : layers_(layers), blocks_(blocks) {
  auto state = state_.Lock();
  state->missing_from.assign(blocks, layers);
}

void LayerProgress::Advance(size_t ready, const std::vector<size_t>& failed) {
  auto state = state_.Lock();
  EMS_CHECK(ready <= layers_, "layer {} of {} is ready", ready, layers_);
  for (const size_t block : failed) {
    EMS_CHECK(block < blocks_, "block {} of {} has failed", block, blocks_);
    state->missing_from[block] = std::min(state->missing_from[block], state->ready);
  }
  state->ready = std::max(state->ready, ready);
  advanced_.notify_all();
}

void LayerProgress::Close(const LoadResult& result) {
  EMS_CHECK(result.blocks.size() == blocks_, "results of {} of {} blocks", result.blocks.size(),
            blocks_);
  std::vector<size_t> failed;
  for (size_t i = 0; i < result.blocks.size(); ++i)
    if (!result.blocks[i].ok()) failed.push_back(i);
  Advance(layers_, failed);
}

bool LayerProgress::WaitUntil(size_t layer, Deadline deadline) {
  auto state = state_.Lock();
  return state.WaitFor(advanced_, deadline.Remaining(),
                       [layer](const State& now) { return now.ready > layer; });
}

LayerReady LayerProgress::At(size_t layer) {
  LayerReady at;
  auto state = state_.Lock();
  for (size_t i = 0; i < state->missing_from.size(); ++i) {
    if (state->missing_from[i] <= layer) at.missing.push_back(i);
  }
  at.leading_blocks = at.missing.empty() ? state->missing_from.size() : at.missing.front();
  return at;
}

size_t LayerProgress::ready() {
  auto state = state_.Lock();
  return state->ready;
}

Result<LayerReady> LayerLoad::WaitLayer(size_t layer, Deadline deadline) const {
  if (layer >= layers()) return Error(StatusCode::kOutOfRange, "layer {} of {}", layer, layers());
  const Deadline own = call_.deadline();
  const Deadline first = own.at() < deadline.at() ? own : deadline;
  if (progress_->WaitUntil(layer, first)) return progress_->At(layer);
  // A load that nobody has begun is over with its deadline.
  (void)Wait(first);
  if (progress_->WaitUntil(layer, deadline)) return progress_->At(layer);
  return Error(StatusCode::kDeadlineExceeded, "layer {} is not there yet, {} of {} are", layer,
               ready_layers(), layers());
}

bool LayerLoad::Wait(Deadline deadline) const {
  if (!call_.Wait(deadline)) return false;
  AwaitClosed();
  return true;
}

LoadResult LayerLoad::Result() const {
  LoadResult result = call_.Result();
  AwaitClosed();
  return result;
}

void LayerLoad::Cancel() const {
  call_.Cancel();
  AwaitClosed();
}

void LayerLoad::AwaitClosed() const {
  (void)progress_->WaitUntil(layers() - 1, Deadline::After(Deadline::kMost));
}

}  // namespace ems::context
