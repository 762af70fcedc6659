#include "mp_server/found_blocks.h"

#include <algorithm>

namespace ems::server {

void FoundBlocks::Keep(uint32_t model, std::vector<File> files) {
  Model kept{.id = model, .files = std::move(files)};
  for (const File& file : kept.files) kept.digests += file.digests.size();
  if (kept.digests == 0) return;
  digests_ += kept.digests;
  models_.push_back(std::move(kept));
  while (digests_ > digests_max_) {
    digests_ -= models_.front().digests;
    models_.pop_front();
  }
}

std::vector<FoundBlocks::File> FoundBlocks::Take(uint32_t model) {
  const auto at = std::ranges::find(models_, model, &Model::id);
  if (at == models_.end()) return {};
  digests_ -= at->digests;
  std::vector<File> files = std::move(at->files);
  models_.erase(at);
  return files;
}

void FoundBlocks::Retain(const std::set<uint32_t>& models) {
  std::erase_if(models_, [&](const Model& one) {
    if (models.contains(one.id)) return false;
    digests_ -= one.digests;
    return true;
  });
}

}  // namespace ems::server
