#include "bench/resp_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace ems::bench {
namespace {

constexpr std::string_view kOk = "+OK\r\n";
constexpr std::string_view kLineEnd = "\r\n";

Status NotUnderstood(std::string_view line) {
  return Error(StatusCode::kInternal, "redis gave an answer that is no RESP2: {}", Printable(line));
}

iovec Part(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

}  // namespace

Status ExplainRespGet(std::string_view line) {
  if (line == "$-1" || line == "_") return Miss();
  if (line.starts_with('-')) {
    return Error(StatusCode::kInternal, "redis: {}", Printable(line.substr(1), 200));
  }
  const std::string_view digits = line.substr(std::min<size_t>(1, line.size()));
  const bool number = !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos;
  if (!line.starts_with('$') || !number) return NotUnderstood(line);
  return Error(StatusCode::kOutOfRange, "redis has a value of {} bytes there", digits);
}

Status ExplainRespSet(std::string_view line) {
  if (!line.starts_with('-')) return NotUnderstood(line);
  const auto code =
      line.starts_with("-OOM") ? StatusCode::kResourceExhausted : StatusCode::kInternal;
  return Error(code, "redis: {}", Printable(line.substr(1), 200));
}

Status RespClient::Get(std::string_view key, MutableBytes into) {
  request_.clear(), expected_.clear();
  fmt::format_to(std::back_inserter(request_), "*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", key.size(), key);
  fmt::format_to(std::back_inserter(expected_), "${}\r\n", into.size());
  std::array<iovec, 1> parts{Part(request_)};
  EMS_RETURN_IF_ERROR(socket_.Send(parts));
  EMS_ASSIGN_OR_RETURN(const std::string other, socket_.Read(expected_, into));
  return other.empty() ? OkStatus() : ExplainRespGet(other);
}

Status RespClient::Set(std::string_view key, ConstBytes value) {
  request_.clear();
  fmt::format_to(std::back_inserter(request_), "*3\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n",
                 key.size(), key, value.size());
  std::array<iovec, 3> parts{Part(request_), Part(AsText(value)), Part(kLineEnd)};
  EMS_RETURN_IF_ERROR(socket_.Send(parts));
  EMS_ASSIGN_OR_RETURN(const std::string other, socket_.Read(kOk, {}));
  return other.empty() ? OkStatus() : ExplainRespSet(other);
}

}  // namespace ems::bench
