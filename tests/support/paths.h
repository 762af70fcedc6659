#pragma once
// Where the build put its programs, and where the sources lie.
#include <string>

namespace ems::testing {

// The folder of mp-server, ems-bench and the others, without a slash at its end.
std::string BinDir();
// The root of the source tree, without a slash at its end.
std::string SourceDir();

}  // namespace ems::testing
