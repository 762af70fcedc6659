#include "mp_controller/page/page_password.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "fabric/http/http_message.h"
#include "fabric/net/socket.h"

namespace ems::controller {
namespace {

constexpr std::string_view kScheme = "Basic ";
constexpr std::string_view kUser = "ems:";

// RFC 4648 §4.
std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view part = bytes.substr(at, 3);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < part.size() ? static_cast<unsigned char>(part[i]) : 0);
    for (size_t i = 0; i < 4; ++i)
      text += i <= part.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

Sha256Digest DigestOf(std::string_view text) { return Sha256().Digest(AsBytes(text)); }

Status Unreadable(const std::string& path, int error) {
  const StatusCode code = error == ENOENT                     ? StatusCode::kNotFound
                          : error == EACCES || error == EPERM ? StatusCode::kPermissionDenied
                                                              : StatusCode::kUnavailable;
  return Error(code, "{}: {}", path, std::generic_category().message(error));
}

// The beginning of a regular file. Never waits for another process.
Result<std::string> ReadBeginning(const std::string& path, size_t bytes_max) {
  const fabric::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return Unreadable(path, errno);
  if (!S_ISREG(info.st_mode)) return Error(StatusCode::kInvalidArgument, "{}: not a file", path);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return Error(StatusCode::kPermissionDenied, "{}: others than its owner may read it: chmod 600",
                 path);
  std::string text(bytes_max, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable(path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

}  // namespace

Result<PagePassword> PagePassword::Read(const std::string& path) {
  EMS_ASSIGN_OR_RETURN(const std::string text, ReadBeginning(path, kBytesMax + 2));
  std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.size() < kBytesMin || line.size() > kBytesMax)
    return Error(StatusCode::kInvalidArgument,
                 "{}: its first line has {} bytes, a password {} to {}: openssl rand -hex 16", path,
                 std::min(line.size(), kBytesMax + 1), kBytesMin, kBytesMax);
  return PagePassword(
      DigestOf(std::string(kScheme) + Base64(std::string(kUser) + std::string(line))));
}

bool PagePassword::Allows(const fabric::HttpRequest& request) const {
  return DigestOf(request.Header("authorization")) == header_;
}

}  // namespace ems::controller
