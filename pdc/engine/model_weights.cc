#include "pdc/engine/model_weights.h"

#include <fstream>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/sha256.h"
#include "ems_model/host_target.h"
#include "model_files/format/safetensors.h"
#include "pdc/engine/tensor_plan.h"
#include "pdc/engine/weight_maker.h"

namespace ems::pdc {
namespace {

template <typename... Args>
Status Bad(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument,
               std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace

Result<ModelWeights> ModelWeights::FromBytes(ConstBytes bytes, std::shared_ptr<const void> owner,
                                             std::string_view file) {
  EMS_ASSIGN_OR_RETURN(const model::HeaderParse parse,
                       model::ParseSafetensors(bytes, bytes.size(), file));
  if (!parse.done())
    return Bad("{}: has {} bytes, its header alone needs {}", file, bytes.size(),
               parse.bytes_needed);
  const auto config = parse.table.metadata.find(kConfigKey);
  if (config == parse.table.metadata.end())
    return Bad("{}: its metadata has no {}", file, kConfigKey);
  ModelWeights weights;
  Result<ModelConfig> parsed = ParseConfig(config->second);
  if (!parsed.ok()) return Prefixed(parsed.status(), file);
  weights.config_ = *std::move(parsed);
  weights.owner_ = std::move(owner);
  EMS_RETURN_IF_ERROR(weights.Check(parse.table, bytes, file));
  return weights;
}

Status ModelWeights::Check(const model::TensorTable& table, ConstBytes file,
                           std::string_view name) {
  for (const model::TensorInfo& info : table.tensors)
    tensors_[info.name] = {info.dtype, info.shape, file.subspan(info.offset, info.bytes)};
  const std::vector<PlannedTensor> plan = PlanTensors(config_);
  Sha256 sha;
  sha.Update(AsBytes(ToJson(config_)));
  for (const PlannedTensor& planned : plan) {
    const auto found = tensors_.find(planned.name);
    if (found == tensors_.end())
      return Bad("{}: has no tensor {}, which its config asks for", name, planned.name);
    const Tensor& tensor = found->second;
    if (tensor.dtype != planned.dtype || tensor.shape != planned.shape)
      return Bad("{}: tensor {} is {} {}, its config asks for {} {}", name, planned.name,
                 model::TraitsOf(tensor.dtype).name, model::ShapeText(tensor.shape),
                 model::TraitsOf(planned.dtype).name, model::ShapeText(planned.shape));
    sha.Update(AsBytes(planned.name));
    sha.Update(tensor.bytes);
    bytes_ += tensor.bytes.size();
  }
  if (tensors_.size() != plan.size())
    return Bad("{}: has {} tensors, its config asks for {}", name, tensors_.size(), plan.size());
  digest_ = ToHex(sha.Finish());
  return OkStatus();
}

Result<ModelWeights> ModelWeights::FromBytes(std::vector<std::byte> bytes, std::string_view file) {
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return FromBytes(*owner, owner, file);
}

Result<ModelWeights> ModelWeights::FromFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = in.tellg();
  if (!in || size < 0) return Error(StatusCode::kNotFound, "{} cannot be read", path);
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!in) return Error(StatusCode::kNotFound, "{} cannot be read", path);
  return FromBytes(std::move(bytes), path);
}

Result<ModelWeights> ModelWeights::FromLoad(const Loader& load) {
  const auto paths = std::make_shared<std::set<std::string, std::less<>>>();
  const auto target = std::make_shared<model::HostTarget>(
      model::HostTarget::Options{.choose = [paths](std::string_view path) {
        if (path.ends_with(".safetensors")) paths->emplace(path);
        return paths->size() == 1 && paths->contains(path);
      }});
  EMS_RETURN_IF_ERROR(load(target.get()));
  if (paths->size() != 1)
    return Bad("the version has {} *.safetensors files, not one", paths->size());
  EMS_ASSIGN_OR_RETURN(const ConstBytes bytes, target->file(*paths->begin()));
  return FromBytes(bytes, target, *paths->begin());
}

Result<ModelWeights> ModelWeights::Make(const ModelConfig& config) {
  EMS_ASSIGN_OR_RETURN(std::vector<std::byte> bytes, MakeWeights(config));
  return FromBytes(std::move(bytes), config.name);
}

void ModelWeights::DropMtp() {
  config_.mtp = false;
  std::erase_if(tensors_, [this](const auto& named) {
    const bool dropped = named.first.starts_with("model.mtp.");
    if (dropped) bytes_ -= named.second.bytes.size();
    return dropped;
  });
}

const ModelWeights::Tensor& ModelWeights::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  EMS_CHECK(found != tensors_.end(), "no tensor {}", name);
  return found->second;
}

}  // namespace ems::pdc
