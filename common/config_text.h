#pragma once
// Configuration as text: what options there are, and what a message is set to.
#include <string>

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace ems::config {

class Option;

// The marks of a field: default, unit, range, words (config_options.proto).
const Option& OptionOf(const google::protobuf::FieldDescriptor* field);
// Whether a field is a section of further ones.
bool IsSection(const google::protobuf::FieldDescriptor* field);

// "1 to 10 ms", or empty.
std::string RangeText(const Option& marks);

// One line an option: key, default, unit, range, help. For --help-config.
std::string Describe(const google::protobuf::Message& message);

// The message as a file that Load takes: loading it gives the same message. For --check-config.
std::string Yaml(const google::protobuf::Message& message);

// The message as one line "a.b=c a.d=e", for the log.
std::string OneLine(const google::protobuf::Message& message);

}  // namespace ems::config
