#include "mp_server/file_checker.h"

#include "ems_model/format/file_sum.h"

namespace ems::server {

Result<FileChecker::Added> FileChecker::Add(const ModelPull::CheckTask& task) const {
  const model::ManifestFile& file = task.manifest->files[task.file];
  EMS_ASSIGN_OR_RETURN(const model::FileSum sum, model::ParseFileSum(file.sum, file.bytes));
  EMS_RETURN_IF_ERROR(model::FileHasher::Offered());
  model::FileHasher hasher(sum);
  EMS_RETURN_IF_ERROR(hasher.Restore(task.state, task.manifest->blocks[task.first].offset));
  Added added;
  for (const model::BlockDigest& digest : task.digests) {
    ModelPull::Outcome found;
    const uint64_t bytes = task.manifest->blocks[task.first + added.blocks].bytes;
    EMS_ASSIGN_OR_RETURN(const bool here,
                         blocks_->Find(task.ns, model::BlockKey(digest), bytes, &found));
    if (!here) {
      added.missing = task.first + added.blocks;
      break;
    }
    hasher.Update(found.pin.value());
    ++added.blocks;
  }
  added.state = hasher.Save();
  return added;
}

}  // namespace ems::server
