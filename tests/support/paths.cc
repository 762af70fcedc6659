#include "tests/support/paths.h"

namespace ems::testing {

std::string BinDir() { return EMS_BIN_DIR; }

std::string SourceDir() { return EMS_SOURCE_DIR; }

}  // namespace ems::testing
