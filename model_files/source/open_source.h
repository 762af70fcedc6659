#pragma once
// The source that a spec names.
#include <memory>

#include "common/status.h"
#include "model_files/source/weight_source.h"

namespace ems::model {

// Opens no connection: a server that is not there shows at the first call. A folder has to exist.
// Proxies named by the environment are not used.
// Errors: kInvalidArgument  the spec; the text never repeats a secret    kNotFound,
// kPermissionDenied  a folder that cannot be opened
Result<std::unique_ptr<WeightSource>> OpenSource(const SourceSpec& spec);

}  // namespace ems::model
