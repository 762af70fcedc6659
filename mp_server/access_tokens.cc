#include "mp_server/access_tokens.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <tuple>
#include <utility>

#include "fabric/socket.h"
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

}  // namespace

Result<AccessTokens> AccessTokens::Read(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return Error(StatusCode::kNotFound, "cannot open {}: {}", path, fabric::ErrnoText(errno));
  AccessTokens tokens;
  uint64_t bytes = 0;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    bytes += line.size() + 1;
    if (bytes > kFileBytesMax)
      return Error(StatusCode::kInvalidArgument, "{}: larger than {}", path,
                   FormatBytes(kFileBytesMax));
    if (const Status added = tokens.AddLine(line); !added.ok())
      return Error(added.code(), "{} line {}: {}", path, number, Message(added));
  }
  if (file.bad())
    return Error(StatusCode::kNotFound, "cannot read {}: {}", path, fabric::ErrnoText(errno));
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
