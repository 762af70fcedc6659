#pragma once
// The name of a model version: "qwen/7b@v1", or "qwen/7b" for the one that was added last.
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems::v1 {
class ModelRef;
}

namespace ems::model {

struct ModelName {
  std::string model;      // as CheckModelName
  std::string version{};  // as CheckVersionName; empty: the version that was added last
  friend bool operator==(const ModelName&, const ModelName&) = default;

  // Errors: kInvalidArgument  a model or version that cannot be
  static Result<ModelName> Parse(std::string_view text);
  std::string Text() const;
};

void ToProto(const ModelName& name, v1::ModelRef* out);

}  // namespace ems::model
