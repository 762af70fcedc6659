// Weights into memory, and the slices of one rank; docs/MODEL_CACHING.md quotes it.
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "ems_model/host_target.h"
#include "ems_model/model_cache.h"
#include "ems_model/tensor_stream.h"

constexpr uint32_t kRanks = 2;

// Whole files into memory.
ems::Status LoadFile(ems::model::ModelCache* cache, const ems::model::ModelName& name,
                     std::string_view path) {
  ems::model::HostTarget target;  // or FileTarget, NpuTarget, TensorStream, your own LoadTarget
  EMS_ASSIGN_OR_RETURN(
      const ems::model::LoadStats stats,
      cache->Load(name, &target, {}, ems::Deadline::After(std::chrono::minutes(10))));
  EMS_ASSIGN_OR_RETURN(const ems::ConstBytes file, target.file(path));
  std::printf("%zu of %llu bytes are those of the file\n", file.size(),
              static_cast<unsigned long long>(stats.bytes));
  return ems::OkStatus();
}

// One rank's slices, linear layers cut by rows of their weight.
ems::Status LoadRank(ems::model::ModelCache* cache, const ems::model::ModelName& name,
                     uint32_t rank) {
  size_t tensors = 0, bytes = 0;
  ems::model::TensorStream::Options options;
  options.choose = [&](std::string_view, const ems::model::TensorInfo& tensor) {
    const bool whole = tensor.shape.size() < 2;
    return std::optional(whole ? ems::model::SliceSpec{}
                               : ems::model::SliceSpec{.axis = 0, .rank = rank, .ranks = kRanks});
  };
  ems::model::TensorStream stream(options, [&](ems::model::LoadedTensor tensor) {
    ++tensors;  // tensor.bytes: copy them to where they are needed
    bytes += tensor.bytes.size();
    return ems::OkStatus();  // an error ends the load
  });
  EMS_RETURN_IF_ERROR(
      cache->Load(name, &stream, {}, ems::Deadline::After(std::chrono::minutes(10))).status());
  std::printf("%zu tensors of rank %u, %zu bytes\n", tensors, rank, bytes);
  return ems::OkStatus();
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s CONTROLLER MODEL@VERSION FILE\n", argv[0]);
    return 2;
  }
  ems::model::ModelCache cache({.controller = argv[1]});
  const ems::Result<ems::model::ModelName> name = ems::model::ModelName::Parse(argv[2]);
  ems::Status loaded = name.status();
  if (loaded.ok()) loaded = LoadFile(&cache, *name, argv[3]);
  if (loaded.ok()) loaded = LoadRank(&cache, *name, 1);
  if (!loaded.ok()) std::fprintf(stderr, "%s\n", ems::ToString(loaded).c_str());
  return loaded.ok() ? 0 : 1;
}
