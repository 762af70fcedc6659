#include "bench/model/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/bytes.h"
#include "common/hash.h"

namespace ems::bench {
namespace {

constexpr uint64_t kTensorBytes = 4 * kMiB;
constexpr int kShards = 2;

// Quick and good enough: no two pieces are alike.
void Fill(uint64_t seed, std::vector<uint64_t>* words) {
  for (uint64_t& word : *words) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t mixed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    word = mixed ^ (mixed >> 31);
  }
}

class File final {
 public:
  File(const std::string& path, Hash64Stream* hash, uint64_t* bytes)
      : path_(path), out_(path, std::ios::binary | std::ios::trunc), hash_(hash), bytes_(bytes) {}
  void Write(ConstBytes bytes) {
    out_.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    hash_->Update(bytes);
    *bytes_ += bytes.size();
  }
  Status Close() {
    out_.close();
    if (out_) return OkStatus();
    return Error(StatusCode::kInternal, "{} cannot be written: is the disk full?", path_);
  }

 private:
  const std::string path_;
  std::ofstream out_;
  Hash64Stream* const hash_;
  uint64_t* const bytes_;
};

std::string ShardName(int shard) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, kShards);
}

Status WriteShard(int shard, uint64_t tensors, uint64_t seed, nlohmann::json* map, File* file) {
  nlohmann::ordered_json header;
  for (uint64_t i = 0; i < tensors; ++i) {
    const std::string name = fmt::format("layers.{}.{}.weight", shard, i);
    (*map)[name] = ShardName(shard);
    header[name] = {{"dtype", "F16"},
                    {"shape", {kTensorBytes / 4096, 2048}},
                    {"data_offsets", {i * kTensorBytes, (i + 1) * kTensorBytes}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  file->Write(std::as_bytes(std::span(&length, 1)));
  file->Write(AsBytes(text));
  std::vector<uint64_t> words(kTensorBytes / sizeof(uint64_t));
  for (uint64_t i = 0; i < tensors; ++i) {
    Fill(seed + (static_cast<uint64_t>(shard) << 40) + (i << 20), &words);
    file->Write(std::as_bytes(std::span(words)));
  }
  return file->Close();
}

}  // namespace

Result<MadeModel> MakeModel(const std::string& folder, uint64_t bytes, uint64_t seed) {
  MadeModel made;
  Hash64Stream hash;
  hash.Reset();
  File config(folder + "/config.json", &hash, &made.bytes);
  config.Write(AsBytes(fmt::format("{{\"made_by\": \"ems-bench\", \"seed\": {}}}\n", seed)));
  EMS_RETURN_IF_ERROR(config.Close());
  nlohmann::json map = nlohmann::json::object();
  const uint64_t tensors = std::max<uint64_t>(kShards, bytes / kTensorBytes);
  for (int shard = 0; shard < kShards; ++shard) {
    File file(fmt::format("{}/{}", folder, ShardName(shard)), &hash, &made.bytes);
    const uint64_t own = tensors / kShards + (shard == 0 ? tensors % kShards : 0);
    EMS_RETURN_IF_ERROR(WriteShard(shard, own, seed, &map, &file));
  }
  File index(folder + "/model.safetensors.index.json", &hash, &made.bytes);
  index.Write(AsBytes(nlohmann::json{{"weight_map", map}}.dump()));
  EMS_RETURN_IF_ERROR(index.Close());
  made.hash = hash.Digest();
  return made;
}

}  // namespace ems::bench
