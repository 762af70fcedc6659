#include "ems_model/model_name.h"

#include "model_files/format/manifest.h"
#include "proto/model.pb.h"

namespace ems::model {

Result<ModelName> ModelName::Parse(std::string_view text) {
  const size_t at = text.find('@');
  ModelName name{.model = std::string(text.substr(0, at)), .version = {}};
  EMS_RETURN_IF_ERROR(CheckModelName(name.model));
  if (at == std::string_view::npos) return name;
  name.version = std::string(text.substr(at + 1));
  EMS_RETURN_IF_ERROR(CheckVersionName(name.version));
  return name;
}

std::string ModelName::Text() const { return version.empty() ? model : model + "@" + version; }

void ToProto(const ModelName& name, v1::ModelRef* out) {
  out->set_model(name.model);
  out->set_version(name.version);
}

}  // namespace ems::model
