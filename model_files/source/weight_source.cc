#include "model_files/source/weight_source.h"

#include <algorithm>

#include "model_files/source/source_url.h"

namespace ems::model {

Result<bool> WeightSource::ReadCompared(const SourceFile& file, uint64_t offset, MutableBytes into,
                                        Deadline deadline) {
  EMS_RETURN_IF_ERROR(Read(file, offset, into, deadline));
  return false;
}

Result<std::string> WeightSource::Sum(const SourceFile&, Deadline) { return std::string(); }

Status CheckRead(const SourceFile& file, uint64_t offset, uint64_t bytes) {
  EMS_RETURN_IF_ERROR(CheckFilePath(file.path));
  const auto fits = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7F; };
  if (file.tag.empty() || file.tag.size() > 4 * kKiB ||
      !std::all_of(file.tag.begin(), file.tag.end(), fits)) {
    return Error(StatusCode::kInvalidArgument, "'{}' has no proper tag: list the source again",
                 Printable(file.path));
  }
  if (offset > file.bytes || bytes > file.bytes - offset) {
    return Error(StatusCode::kInvalidArgument, "'{}' has {} bytes: none at offset {} + {}",
                 Printable(file.path), file.bytes, offset, bytes);
  }
  return OkStatus();
}

}  // namespace ems::model
