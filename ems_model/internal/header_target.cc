#include "ems_model/internal/header_target.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "ems_model/manifest_maker.h"

namespace ems::model::internal {

HeaderTarget::HeaderTarget(const Manifest* manifest)
    : manifest_(*manifest), heads_(manifest->files.size()), tables_(manifest->files.size()) {
  for (uint32_t i = 0; i < manifest_.files.size(); ++i) {
    if (FormatOf(manifest_.files[i].path) != FileFormat::kOpaque && manifest_.files[i].bytes > 0)
      open_.push_back(i);
  }
  // A header is a block of its own, so the first block is most often all that it takes.
  std::vector<uint64_t> first(manifest_.files.size());
  for (const ManifestBlock& block : manifest_.blocks) {
    if (block.offset == 0) first[block.file] = block.bytes;
  }
  for (const uint32_t file : open_) Want(file, first[file]);
}

void HeaderTarget::Want(uint32_t file, uint64_t bytes) {
  Head& head = heads_[file];
  EMS_CHECK(bytes >= head.wanted, "file {}: {} bytes have come, {} wanted", file, head.wanted,
            bytes);
  head.there = std::exchange(head.wanted, bytes);
  head.bytes.resize(bytes);
}

uint64_t HeaderTarget::Wants(uint32_t file, uint64_t offset, uint64_t bytes) {
  EMS_CHECK(file < heads_.size(), "file {} of {}", file, heads_.size());
  const Head& head = heads_[file];
  const uint64_t from = std::max(offset, head.there);
  const uint64_t to = std::min(offset + bytes, head.wanted);
  return to > from ? to - from : 0;
}

Status HeaderTarget::Place(uint32_t file, uint64_t offset, uint64_t bytes,
                           std::vector<LoadRange>* ranges) {
  const uint64_t from = std::max(offset, heads_[file].there);
  ranges->push_back(
      {.offset = from,
       .into = MutableBytes(heads_[file].bytes).subspan(from, Wants(file, offset, bytes))});
  return OkStatus();
}

Status HeaderTarget::Parse() {
  std::vector<uint32_t> again;
  for (const uint32_t i : open_) {
    const ManifestFile& file = manifest_.files[i];
    const ConstBytes bytes = heads_[i].bytes;
    Result<HeaderParse> parsed = ParseHeader(FormatOf(file.path), bytes, file.bytes, file.path);
    if (parsed.status().code() == StatusCode::kUnimplemented) {
      Want(i, bytes.size());
      continue;
    }
    EMS_RETURN_IF_ERROR(parsed.status());
    Want(i, std::max<uint64_t>(parsed->bytes_needed, bytes.size()));
    if (parsed->done()) {
      tables_[i] = std::move(parsed->table);
    } else {
      again.push_back(i);
    }
  }
  open_ = std::move(again);
  return OkStatus();
}

}  // namespace ems::model::internal
