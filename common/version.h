#pragma once
// The version of this software, as CMakeLists.txt says it: "0.1.0".
#include <string_view>

namespace ems {

// Points to static memory.
std::string_view Version();

}  // namespace ems
