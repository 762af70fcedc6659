#pragma once
// The password that the page of the cluster asks for: HTTP Basic (RFC 7617) of user "ems".
//
// Invariant: what is kept, compared and said in errors never holds the password. It is read once; a
// controller that is to ask for another one is started again.
// Bound: kBytesMin to kBytesMax.
#include <string>

#include "common/sha256.h"
#include "common/status.h"

namespace ems::fabric {
struct HttpRequest;
}  // namespace ems::fabric

namespace ems::controller {

// Threading: immutable.
class PagePassword final {
 public:
  static constexpr size_t kBytesMin = 12;
  static constexpr size_t kBytesMax = 256;

  // The first line of a file that its owner alone may read. Errors: kNotFound  no such file
  // kPermissionDenied  others may read it, or this process may not
  // kInvalidArgument  no regular file, or its line is shorter or longer than a password may be
  static Result<PagePassword> Read(const std::string& path);

  // Whether the request carries the password. Cost: a SHA-256 of one header, as long for a wrong
  // password as for the right one of its length.
  bool Allows(const fabric::HttpRequest& request) const;

 private:
  explicit PagePassword(const Sha256Digest& header) : header_(header) {}
  Sha256Digest header_;  // of the Authorization that carries it
};

}  // namespace ems::controller
