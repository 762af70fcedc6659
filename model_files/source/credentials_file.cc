#include "model_files/source/credentials_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace ems::model {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

Status Unreadable(const std::string& path, int error) {
  const StatusCode code = error == ENOENT                     ? StatusCode::kNotFound
                          : error == EACCES || error == EPERM ? StatusCode::kPermissionDenied
                                                              : StatusCode::kUnavailable;
  return Error(code, "credentials file {}: {}", path, std::generic_category().message(error));
}

// The field that a key stands for; null: none.
std::string* FieldOf(std::string_view key, SourceCredentials* credentials) {
  if (key == "aws_access_key_id") return &credentials->access_key;
  if (key == "aws_secret_access_key") return &credentials->secret_key;
  if (key == "aws_session_token") return &credentials->session_token;
  if (key == "bearer_token") return &credentials->bearer_token;
  return nullptr;
}

// "a, B:9000" → "a", "b:9000".
std::vector<std::string> HostsOf(std::string_view text) {
  std::vector<std::string> hosts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    std::string host(Trim(text.substr(0, end)));
    for (char& c : host) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    hosts.push_back(std::move(host));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return hosts;
}

Result<std::string> ReadWhole(int file, const std::string& path) {
  std::string text;
  char part[4096];
  while (true) {
    const ssize_t got = ::read(file, part, sizeof(part));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable(path, errno);
    if (got == 0) return text;
    text.append(part, static_cast<size_t>(got));
    if (text.size() > kFileBytesMax) {
      return Error(StatusCode::kInvalidArgument, "credentials file {} has more than 1 MiB", path);
    }
  }
}

}  // namespace

Result<SourceCredentials> ReadCredentials(const std::string& path, std::string_view name) {
  if (path.empty()) {
    return Error(StatusCode::kNotFound,
                 "credentials \"{}\" are wanted and no credentials file is configured", name);
  }
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Unreadable(path, errno);
  struct stat info {};
  Result<std::string> text = std::string();
  if (::fstat(file, &info) != 0) {
    text = Unreadable(path, errno);
  } else if (!S_ISREG(info.st_mode)) {
    text = Error(StatusCode::kInvalidArgument, "credentials file {} is no file", path);
  } else if ((info.st_mode & 077) != 0) {
    text = Error(StatusCode::kPermissionDenied,
                 "credentials file {} may be read by others (mode {:o}): chmod 600 it", path,
                 info.st_mode & 0777);
  } else {
    text = ReadWhole(file, path);
  }
  ::close(file);
  if (!text.ok()) return text.status();
  return ParseCredentials(*text, path, name);
}

Result<SourceCredentials> ParseCredentials(std::string_view text, const std::string& path,
                                           std::string_view name) {
  SourceCredentials credentials;
  bool here = false;
  bool found = false;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[' && line.back() == ']') {
      here = Trim(line.substr(1, line.size() - 2)) == name;
      if (here && found) {
        return Error(StatusCode::kInvalidArgument, "{}:{}: section \"{}\" occurs twice", path,
                     number, name);
      }
      found = found || here;
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: neither [name] nor key = value", path,
                   number);
    }
    if (!here) continue;
    // Other keys (region, …) belong to other tools.
    const std::string_view key = Trim(line.substr(0, equals));
    const std::string_view value = Trim(line.substr(equals + 1));
    if (key == "hosts") credentials.hosts = HostsOf(value);
    if (key == "hosts" && value.empty()) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: hosts names none", path, number);
    }
    if (std::string* field = FieldOf(key, &credentials); field != nullptr) *field = value;
  }
  if (!found) {
    return Error(StatusCode::kNotFound, "credentials file {} has no section [{}]", path, name);
  }
  if (credentials.access_key.empty() != credentials.secret_key.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: section [{}] has one of aws_access_key_id and aws_secret_access_key: both "
                 "are needed",
                 path, name);
  }
  return credentials;
}

}  // namespace ems::model
