#pragma once
// Secrets for sources, by name, in a file as the tools of object stores keep it:
//
//   [team]
//   aws_access_key_id = …
//   aws_secret_access_key = …
//   aws_session_token = …        only of temporary keys
//   bearer_token = …             for http and https
//   hosts = …                    which they are for: host or host:port, with commas between; else
//                                any client that may name a source can have them used for any
//
// Lines that start with # or ; are comments. Bound: 1 MiB.
#include <string>
#include <string_view>

#include "common/status.h"
#include "model_files/source/weight_source.h"

namespace ems::model {

// The credentials of section `name`. Read again at each call, so that keys can be replaced.
// Errors: kNotFound  no file, or no such section in it    kPermissionDenied  others may read it
//   kInvalidArgument  a line that makes no sense; the text names the line and never its content
Result<SourceCredentials> ReadCredentials(const std::string& path, std::string_view name);

// The same from text; `path` stands for it in errors.
Result<SourceCredentials> ParseCredentials(std::string_view text, const std::string& path,
                                           std::string_view name);

}  // namespace ems::model
