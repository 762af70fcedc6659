#pragma once
// The tensors of a model as they were loaded, checked against the plan of its config.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "ems_model/load_target.h"
#include "model_files/format/tensor_table.h"
#include "pdc/engine/model_config.h"

namespace ems::pdc {

// Invariant: every tensor of PlanTensors(config()) is there, with that type and shape.
// Threading: immutable, but for DropMtp.
class ModelWeights final {
 public:
  struct Tensor {
    model::DType dtype = model::DType::kF32;
    std::vector<uint64_t> shape;
    ConstBytes bytes;  // row-major; aligned to nothing
  };

  // Brings a version of a model to `target`: OpenModel::Load, ModelCache::Load, ModelLoader::Load.
  using Loader = std::function<Status(model::LoadTarget* target)>;

  // From a safetensors file in memory, whose metadata holds the config. `owner` keeps `bytes`
  // alive. Errors: kInvalidArgument  no such file, no config, a tensor missing, unknown, or of
  // another type or shape: names it
  static Result<ModelWeights> FromBytes(ConstBytes bytes, std::shared_ptr<const void> owner,
                                        std::string_view file);
  static Result<ModelWeights> FromBytes(std::vector<std::byte> bytes, std::string_view file);
  // Reads the file whole. Errors: as FromBytes    kNotFound  it cannot be read
  static Result<ModelWeights> FromFile(const std::string& path);
  // Loads the one *.safetensors file of a version through ems_model:
  //   FromLoad([&](auto* target) { return opened->Load(target, deadline).status(); })
  // Errors: as FromBytes; those of the load    kInvalidArgument  not exactly one such file
  static Result<ModelWeights> FromLoad(const Loader& load);
  // Made up, without a file.   Errors: as MakeWeights
  static Result<ModelWeights> Make(const ModelConfig& config);

  // Forgets the MTP head, so that nothing is guessed. Tokens and KV stay the same, and so does the
  // digest.
  void DropMtp();

  const ModelConfig& config() const { return config_; }
  // Of the plan's tensors only.
  const Tensor& tensor(const std::string& name) const;
  // SHA-256 over config, names and bytes of all tensors, in the plan's order; hexadecimal.
  const std::string& digest() const { return digest_; }
  uint64_t bytes() const { return bytes_; }  // of all tensors

 private:
  ModelWeights() = default;
  Status Check(const model::TensorTable& table, ConstBytes file, std::string_view name);

  ModelConfig config_;
  std::map<std::string, Tensor> tensors_;
  std::shared_ptr<const void> owner_;
  std::string digest_;
  uint64_t bytes_ = 0;
};

}  // namespace ems::pdc
