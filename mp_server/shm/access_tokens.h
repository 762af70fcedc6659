#pragma once
// The tokens with which clients on this host may attach to namespaces: a text file of the
// operator's.
//
//   # comment
//   NAMESPACE TOKEN
//   *         TOKEN      for every namespace without a line of its own
//
// A namespace may have several lines, so that a token can be replaced while clients still use the
// old one. Replace the file by rename: of half a file, cut at the end of a line, a namespace's own
// line may be missing, and the line `*` would then hold for it. Bound: kFileBytesMax; tokens of up
// to wire::kTokenBytesMax bytes.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::server {

// Threading: immutable.
class AccessTokens final {
 public:
  static constexpr uint64_t kFileBytesMax = 64 * kKiB;

  // Reads the file. Errors: kNotFound  it cannot be read
  //   kInvalidArgument  a line that is not as above, with its number; too large
  static Result<AccessTokens> Read(const std::string& path);

  // Errors: kPermissionDenied  no token, a wrong one, or none is set for this namespace
  Status Check(std::string_view name_space, std::string_view token) const;

 private:
  Status AddLine(std::string_view line);

  std::multimap<std::string, std::string, std::less<>> tokens_;
};

}  // namespace ems::server
