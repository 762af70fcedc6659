#include "ems_model/npu_target.h"

#include <algorithm>

#include "common/check.h"

namespace ems::model {

NpuTarget::NpuTarget(fabric::NpuDevice* device, Options options)
    : device_(device), options_(std::move(options)) {
  for (uint32_t i = 0; i < std::max(1U, options_.streams); ++i)
    streams_.push_back(std::make_unique<fabric::NpuStream>(device));
}

NpuTarget::~NpuTarget() {
  streams_.clear();  // ends what is queued
  Release();
}

void NpuTarget::Release() {
  for (File& file : files_) {
    if (file.wanted) device_->Free(file.device.at);
  }
  files_.clear();
}

Status NpuTarget::Begin(std::span<const LoadFile> files) {
  Release();
  loaded_ = false;
  for (const LoadFile& one : files) {
    File file{.path = std::string(one.path), .wanted = false, .device = {}};
    if (!options_.choose || options_.choose(one.path)) {
      auto at = device_->Allocate(one.bytes);
      if (!at.ok()) return Prefixed(at.status(), file.path);
      file.wanted = true;
      file.device = {.at = *at, .bytes = one.bytes};
    }
    files_.push_back(std::move(file));
  }
  return OkStatus();
}

uint64_t NpuTarget::Wants(uint32_t file, uint64_t, uint64_t bytes) {
  EMS_CHECK(file < files_.size(), "file {} of {}", file, files_.size());
  return files_[file].wanted ? bytes : 0;
}

Status NpuTarget::Place(uint32_t file, uint64_t offset, uint64_t bytes,
                        std::vector<LoadRange>* ranges) {
  auto staging = staging_.Lock();
  EMS_CHECK(files_[file].wanted, "a block of a file that is not wanted");
  auto& [buffer, size] = staging->under_way[{file, offset}];
  if (buffer == nullptr) {
    size = bytes;
    const auto fits = staging->free.lower_bound(bytes);
    if (fits != staging->free.end()) {
      size = fits->first;
      buffer = std::move(fits->second);
      staging->free.erase(fits);
    } else {
      buffer = std::make_unique_for_overwrite<std::byte[]>(bytes);
    }
  }
  ranges->push_back({.offset = offset, .into = {buffer.get(), bytes}});
  return OkStatus();
}

Status NpuTarget::Arrived(uint32_t file, uint64_t offset, uint64_t bytes) {
  Buffer buffer;
  uint64_t size = 0;
  {
    auto staging = staging_.Lock();
    const auto it = staging->under_way.find({file, offset});
    EMS_CHECK(it != staging->under_way.end(), "a block that was not placed has arrived");
    buffer = std::move(it->second.first);
    size = it->second.second;
    staging->under_way.erase(it);
  }
  fabric::NpuStream& stream = *streams_[(offset / std::max<uint64_t>(bytes, 1)) % streams_.size()];
  EMS_RETURN_IF_ERROR(
      stream.CopyIn(files_[file].device.at + offset, ConstBytes(buffer.get(), bytes)));
  if (!stream.Record()->Wait(options_.copy_timeout)) {
    (void)buffer.release();  // the engine may still read it: better lost than reused
    return Error(StatusCode::kDeadlineExceeded, "SDMA of {} bytes did not end", bytes);
  }
  auto staging = staging_.Lock();
  staging->free.emplace(size, std::move(buffer));
  return OkStatus();
}

Status NpuTarget::End(const Status& load) {
  loaded_ = load.ok();
  if (!loaded_) Release();
  auto staging = staging_.Lock();
  staging->under_way.clear();
  return OkStatus();
}

Result<NpuTarget::DeviceFile> NpuTarget::file(std::string_view path) const {
  for (const File& file : files_) {
    if (loaded_ && file.wanted && file.path == path) return file.device;
  }
  return Error(StatusCode::kNotFound, "{} has not been loaded", path);
}

}  // namespace ems::model
