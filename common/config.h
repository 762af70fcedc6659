#pragma once
// Configuration: one YAML file a daemon, checked against a Protobuf message whose fields carry
// default, unit and range. Whatever is unknown, of the wrong type or out of range stops the start
// and names file, line and key.
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace google::protobuf {
class Message;
}

namespace ems::config {

// Fills `message` with defaults, then the YAML of `path` (skipped when empty), then `overrides`
// ("a.b=c", last one wins), and checks every field. `message` is undefined after an error. Errors:
// kInvalidArgument  naming file:line, the key, what was found and what is allowed    kNotFound  no
// such file
Status Load(const std::string& path, const std::vector<std::string>& overrides,
            google::protobuf::Message* message);

// The same from text; `name` stands for the file in errors. Bounded: 1 MiB of text, 32 levels.
Status LoadText(std::string_view yaml, std::string_view name,
                const std::vector<std::string>& overrides, google::protobuf::Message* message);

// The mode of a file in octal, "660" or "0660".   Errors: kInvalidArgument
Result<uint32_t> ParseMode(std::string_view text);

}  // namespace ems::config
