#pragma once
// Models in memory: files with tensors whose bytes show where they belong, a source that reads
// them, and folders of them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "model_files/source/weight_source.h"
#include "tests/support/model_files.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {

using ModelFiles = std::map<std::string, std::string>;  // path → bytes

struct MadeTensor {
  std::string name;
  std::vector<uint64_t> shape;  // of BF16
  uint64_t seed = 1;            // another one: other bytes

  uint64_t bytes() const {
    uint64_t sum = 2;
    for (const uint64_t extent : shape) sum *= extent;
    return sum;
  }
  std::string data() const { return MakeValue("tensor", name, seed, bytes()); }
};

inline std::string TensorFile(const std::vector<MadeTensor>& tensors) {
  SafetensorsBuilder builder;
  std::string data;
  for (const MadeTensor& tensor : tensors) {
    builder.Add(tensor.name, "BF16", tensor.shape, tensor.bytes());
    data += tensor.data();
  }
  return SafetensorsFile(builder.Json(), 0) + data;
}

// Writes them below `folder`, which is made.
inline void WriteFiles(const std::string& folder, const ModelFiles& files) {
  for (const auto& [path, bytes] : files) {
    const std::filesystem::path full = std::filesystem::path(folder) / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary) << bytes;
  }
}

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Threading: thread-safe; `files` and the hook are set before.
class MemorySource final : public model::WeightSource {
 public:
  explicit MemorySource(ModelFiles files_in) : files(std::move(files_in)) {}

  ModelFiles files;
  // Asked before each read; an error is its result.
  std::function<Status(const std::string& path, uint64_t offset)> gate;
  // Called with what each read gives. May be empty.
  std::function<void(const std::string& path, uint64_t offset, MutableBytes bytes)> damage;
  std::map<std::string, std::string> sums;  // by path: what Sum says
  bool compares = false;                    // what ReadCompared says
  // Called with what each List gives; `lists` counts them. May be empty.
  std::function<void(Result<std::vector<model::SourceFile>>*)> on_list;
  int lists = 0;

  Result<std::vector<model::SourceFile>> List(Deadline) override {
    std::vector<model::SourceFile> list;
    for (const auto& [path, bytes] : files)
      list.push_back({.path = path, .bytes = bytes.size(), .tag = "t"});
    Result<std::vector<model::SourceFile>> listed(std::move(list));
    ++lists;
    if (on_list) on_list(&listed);
    return listed;
  }
  Status Read(const model::SourceFile& file, uint64_t offset, MutableBytes into,
              Deadline) override {
    if (gate) EMS_RETURN_IF_ERROR(gate(file.path, offset));
    const auto found = files.find(file.path);
    if (found == files.end()) return Error(StatusCode::kNotFound, "{}", file.path);
    EMS_RETURN_IF_ERROR(model::CheckRead(file, offset, into.size()));
    std::memcpy(into.data(), found->second.data() + offset, into.size());
    if (damage) damage(file.path, offset, into);
    auto read = read_.Lock();
    *read += into.size();
    return OkStatus();
  }
  Result<bool> ReadCompared(const model::SourceFile& file, uint64_t offset, MutableBytes into,
                            Deadline deadline) override {
    EMS_RETURN_IF_ERROR(Read(file, offset, into, deadline));
    return compares;
  }
  Result<std::string> Sum(const model::SourceFile& file, Deadline) override {
    const auto sum = sums.find(file.path);
    return sum == sums.end() ? std::string() : sum->second;
  }
  model::SourceCounters counters() const override { return {}; }
  uint64_t bytes_read() {
    auto read = read_.Lock();
    return *read;
  }

 private:
  Guarded<uint64_t> read_{std::in_place, 0U};
};

}  // namespace ems::testing
