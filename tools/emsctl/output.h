#pragma once
// Output of emsctl: results on standard output, as text or as one JSON document; errors on standard
// error, as text or with --json as one document a line.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "common/status.h"

namespace ems::emsctl {

struct Context;

// Bytes as they are. False when standard output is gone (a closed pipe, a full disk).
bool Print(std::string_view text);
// The document, indented, and a newline. Text that is not UTF-8 gets replacement characters.
bool PrintJson(const nlohmann::ordered_json& json);
// What a command has to say, as a document with --json and as text without. 0; 1 when standard
// output is gone.
int Show(const Context& context, const nlohmann::ordered_json& json, std::string_view text);
// The same of a command that has changed something: with the cluster that it was done in.
int ShowChange(const Context& context, nlohmann::ordered_json json, std::string text);
// {"removed": "x", "cluster": …}, or "removed x" and the cluster.
int ShowDone(const Context& context, const std::string& verb, const std::string& name);
std::string JsonText(const nlohmann::ordered_json& json);

// The exit code of an error.
int ExitCodeOf(StatusCode code);

// Each of these says an error and returns its exit code. Text: "emsctl: what: CODE: text" and,
// where there is one, a line with what to do. JSON: {"error": {"code", "message", "advice"}}, the
// latter where there is one.
int Complain(const Context& context, std::string_view what, const Status& status);
// Whose text is whole as it is: without its code, and without advice.
int Complain(const Context& context, const Status& status);
// A command that makes no sense.
int ComplainOfUsage(const Context& context, std::string_view what);
// The controller does not answer, or not as it should.
int Unreachable(const Context& context, const Status& status);
// What is no error, on standard error: "KIND: text", or {"KIND": "text"}.
void Remark(const Context& context, std::string_view kind, std::string_view text);
// What a person can do about an error, or empty.
std::string_view Advice(const Status& status);

}  // namespace ems::emsctl
