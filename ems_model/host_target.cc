#include "ems_model/host_target.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::model {
namespace {

Result<MutableBytes> MapMemory(const LoadFile& file) {
  void* const memory = ::mmap(nullptr, file.bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Error(StatusCode::kResourceExhausted, "no memory for {} of {}", file.path,
                 FormatBytes(file.bytes));
  }
  (void)::madvise(memory, file.bytes, MADV_HUGEPAGE);
  return MutableBytes(static_cast<std::byte*>(memory), file.bytes);
}

}  // namespace

HostTarget::HostTarget(Options options) : options_(std::move(options)) {}

HostTarget::~HostTarget() { Release(); }

void HostTarget::Release() {
  for (const File& file : files_) {
    if (file.mapped) (void)::munmap(file.bytes.data(), file.bytes.size());
  }
  files_.clear();
  loaded_ = false;
}

Status HostTarget::Begin(std::span<const LoadFile> files) {
  Release();
  for (const LoadFile& wanted : files) {
    File& file = files_.emplace_back();
    file.path = wanted.path;
    file.wanted = !options_.choose || options_.choose(wanted.path);
    if (!file.wanted || wanted.bytes == 0) continue;
    if (!options_.room) {
      EMS_ASSIGN_OR_RETURN(file.bytes, MapMemory(wanted));
      file.mapped = true;
      continue;
    }
    EMS_ASSIGN_OR_RETURN(file.bytes, options_.room(wanted.path, wanted.bytes));
    if (file.bytes.size() != wanted.bytes) {
      return Error(StatusCode::kInvalidArgument, "room of {} bytes for {} of {}", file.bytes.size(),
                   wanted.path, wanted.bytes);
    }
  }
  return OkStatus();
}

uint64_t HostTarget::Wants(uint32_t file, uint64_t, uint64_t bytes) {
  EMS_CHECK(file < files_.size(), "file {} of {}", file, files_.size());
  return files_[file].wanted ? bytes : 0;
}

Status HostTarget::Place(uint32_t file, uint64_t offset, uint64_t bytes,
                         std::vector<LoadRange>* ranges) {
  EMS_CHECK(files_[file].wanted && offset + bytes <= files_[file].bytes.size(),
            "bytes {} to {} of {}, which has room for {}", offset, offset + bytes,
            files_[file].path, files_[file].bytes.size());
  ranges->push_back({.offset = offset, .into = files_[file].bytes.subspan(offset, bytes)});
  return OkStatus();
}

Status HostTarget::End(const Status& load) {
  loaded_ = load.ok();
  return OkStatus();
}

Result<ConstBytes> HostTarget::file(std::string_view path) const {
  const auto found = std::ranges::find(files_, path, &File::path);
  if (loaded_ && found != files_.end() && found->wanted) return ConstBytes(found->bytes);
  return Error(StatusCode::kNotFound, "{} has not been loaded", Printable(path));
}

}  // namespace ems::model
