#pragma once
// How emsctl speaks: results on standard output, as text or as one JSON document; complaints on
// standard error.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems::emsctl {

// Bytes as they are. False when standard output is gone (a closed pipe, a full disk).
bool Print(std::string_view text);
// The document, indented, and a newline. Text that is not UTF-8 gets replacement characters.
bool PrintJson(const nlohmann::ordered_json& json);
std::string JsonText(const nlohmann::ordered_json& json);

// "emsctl: what: CODE: text" and, where there is one, a line with what to do. Returns exit code 1.
int Complain(std::string_view what, const Status& status);
int Complain(std::string_view what);
// What a person can do about an error, or empty.
std::string_view Advice(const Status& status);

}  // namespace ems::emsctl
