#include "common/version.h"

namespace ems {

std::string_view Version() { return EMS_VERSION; }

}  // namespace ems
