#include "mp_server/shm/access_tokens.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "fabric/net/socket.h"
#include "proto/data_plane.h"

namespace ems::server {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// The first word, which is taken off `text`.
std::string_view TakeWord(std::string_view* text) {
  text->remove_prefix(std::min(text->find_first_not_of(kBlanks), text->size()));
  const std::string_view word = text->substr(0, text->find_first_of(kBlanks));
  text->remove_prefix(word.size());
  return word;
}

// Takes as long for a wrong token as for the right one.
bool SameToken(std::string_view given, std::string_view right) {
  unsigned char difference = given.size() == right.size() ? 0 : 1;
  for (size_t i = 0; i < right.size(); ++i) {
    const char other = given.empty() ? '\0' : given[i % given.size()];
    difference = static_cast<unsigned char>(difference | (other ^ right[i]));
  }
  return difference == 0;
}

// All of a regular file. Never waits for another process.
Result<std::string> ReadText(const std::string& path) {
  const fabric::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0)
    return Error(StatusCode::kNotFound, "cannot open {}: {}", path, fabric::ErrnoText(errno));
  if (!S_ISREG(info.st_mode)) return Error(StatusCode::kInvalidArgument, "{}: not a file", path);
  std::string text(AccessTokens::kFileBytesMax + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Error(StatusCode::kNotFound, "cannot read {}: {}", path, fabric::ErrnoText(errno));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > AccessTokens::kFileBytesMax)
    return Error(StatusCode::kInvalidArgument, "{}: larger than {}", path,
                 FormatBytes(AccessTokens::kFileBytesMax));
  text.resize(size);
  return text;
}

}  // namespace

Result<AccessTokens> AccessTokens::Read(const std::string& path) {
  EMS_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  AccessTokens tokens;
  int number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos)
      return Error(StatusCode::kInvalidArgument, "{}: the last line does not end: is it whole?",
                   path);
    ++number;
    if (const Status added = tokens.AddLine(rest.substr(0, end)); !added.ok())
      return Error(added.code(), "{} line {}: {}", path, number, Message(added));
    rest.remove_prefix(end + 1);
  }
  return tokens;
}

// The text of an error never holds the token.
Status AccessTokens::AddLine(std::string_view line) {
  const std::string_view name = TakeWord(&line);
  if (name.empty() || name.front() == '#') return OkStatus();
  const std::string_view token = TakeWord(&line);
  if (token.empty() || !TakeWord(&line).empty())
    return Error(StatusCode::kInvalidArgument, "want NAMESPACE TOKEN, two words");
  if (token.size() > wire::kTokenBytesMax)
    return Error(StatusCode::kInvalidArgument, "a token of {} bytes, {} at most", token.size(),
                 wire::kTokenBytesMax);
  tokens_.emplace(name, token);
  return OkStatus();
}

Status AccessTokens::Check(std::string_view name_space, std::string_view token) const {
  auto [first, last] = tokens_.equal_range(name_space);
  if (first == last) std::tie(first, last) = tokens_.equal_range(std::string_view("*"));
  if (first == last)
    return Error(StatusCode::kPermissionDenied, "shm.token_file has no line for namespace {}",
                 name_space);
  bool right = false;
  for (; first != last; ++first) right |= SameToken(token, first->second);
  if (right) return OkStatus();
  return Error(StatusCode::kPermissionDenied, "{} for namespace {}: see ClientOptions::shm_token",
               token.empty() ? "no token" : "wrong token", name_space);
}

}  // namespace ems::server
