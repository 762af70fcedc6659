#include "ems_context/internal/layer_reader.h"

#include <algorithm>

#include "common/check.h"
#include "ems_context/prefix_matcher.h"

namespace ems::context {

std::vector<LayerRange> PlanLayerReads(const KvLayout& layout, std::span<const PagedBlock> blocks,
                                       uint64_t bytes_min) {
  std::vector<uint64_t> tokens(layout.groups());  // most of any block
  for (const PagedBlock& block : blocks) {
    for (size_t group = 0; group < tokens.size(); ++group)
      tokens[group] = std::max(tokens[group], TokensOf(block.runs[group]));
  }
  std::vector<LayerRange> plan;
  uint64_t bytes = 0;
  for (size_t layer = 0; layer < layout.layers(); ++layer) {
    if (plan.empty() || bytes >= bytes_min) {
      plan.push_back({layer, layer});
      bytes = 0;
    }
    plan.back().end = layer + 1;
    bytes += layout.LayerBytes(layer, tokens[layout.group_of(layer)]);
  }
  return plan;
}

LayerReader::LayerReader(BlockStore* store, const KvLayout& layout,
                         std::span<const PagedBlock> blocks, LayerProgress* progress)
    : store_(store), layout_(layout), blocks_(blocks), progress_(progress) {
  for (const PagedBlock& block : blocks_) {
    EMS_CHECK(block.runs.size() == layout_.groups(), "runs of {} groups for a layout of {}",
              block.runs.size(), layout_.groups());
    object_bytes_.push_back(ObjectBytes(layout_, block));
    result_.blocks.emplace_back(object_bytes_.back());
  }
}

LoadResult LayerReader::Run(const std::vector<LayerRange>& plan, bool touch,
                            const CallBounds& bounds) {
  for (const LayerRange range : plan) {
    if (const Status stop = bounds.Check(); !stop.ok()) {
      FailRest(stop);
      break;
    }
    GetOptions options;
    options.timeout = std::max(bounds.deadline.Remaining(), Duration(1));
    options.touch = touch && range.begin == 0;  // one use, at the first read
    ReadRange(range, options);
  }
  result_.leading_blocks = LeadingOk(result_.blocks);
  return result_;
}

// Tail-first, as all that touches (context_cache.h).
void LayerReader::Plan(LayerRange range) {
  reads_.clear();
  parts_.clear();
  for (size_t block = blocks_.size(); block-- > 0;) {
    if (!result_.blocks[block].ok()) continue;
    uint64_t group_at = 0;  // in the object
    for (uint32_t group = 0; group < layout_.groups(); ++group) {
      const std::vector<SlotRun>& runs = blocks_[block].runs[group];
      const uint64_t tokens = TokensOf(runs);
      bool first = true;
      for (size_t layer = range.begin; layer < range.end && tokens > 0; ++layer) {
        if (layout_.group_of(layer) != group) continue;
        if (first) reads_.push_back({block, group_at + layout_.LayerOffset(layer, tokens), 0});
        first = false;
        const Status added = layout_.AppendLayerParts(layer, runs, &parts_);
        EMS_CHECK(added.ok(), "slots were checked: {}", ToString(added));
      }
      if (!first) reads_.back().parts_end = parts_.size();
      group_at += layout_.BlockBytes(group, tokens);
    }
  }
}

void LayerReader::ReadRange(LayerRange range, const GetOptions& options) {
  Plan(range);
  std::vector<RangeItem> items;
  items.reserve(reads_.size());
  size_t parts_at = 0;
  for (const Read& read : reads_) {
    const auto parts =
        std::span<const MutableBytes>(parts_).subspan(parts_at, read.parts_end - parts_at);
    parts_at = read.parts_end;
    items.push_back({.key = blocks_[read.block].key,
                     .offset = read.offset,
                     .into = parts,
                     .whole_bytes = object_bytes_[read.block]});
  }
  std::vector<Status> answers;
  if (!items.empty()) answers = store_->MultiGetRange(items, options);
  EMS_CHECK(answers.size() == items.size(), "{} answers to {} items", answers.size(), items.size());
  std::vector<size_t> failed;
  for (size_t i = 0; i < answers.size(); ++i) {
    const size_t block = reads_[i].block;
    if (answers[i].ok() || !result_.blocks[block].ok()) continue;
    const bool other_length = answers[i].code() == StatusCode::kOutOfRange;
    if (other_length) ++size_mismatches_;
    result_.blocks[block] = other_length ? Miss() : answers[i];
    failed.push_back(block);
  }
  EMS_CHECK(range.end <= layout_.layers() && range.begin < range.end);
  progress_->Advance(range.end, failed);
}

void LayerReader::FailRest(const Status& why) {
  for (ems::Result<uint64_t>& block : result_.blocks) {
    if (block.ok()) block = why;
  }
}

}  // namespace ems::context
