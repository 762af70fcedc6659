#include "bench/memcached_client.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

namespace ems::bench {
namespace {

constexpr std::string_view kStored = "HD\r\n";
constexpr std::string_view kLineEnd = "\r\n";

bool IsError(std::string_view line) {
  return line == "ERROR" || line.starts_with("ERROR ") || line.starts_with("CLIENT_ERROR") ||
         line.starts_with("SERVER_ERROR");
}

Status Refused(StatusCode code, std::string_view line) {
  return Error(code, "memcached: {}", Printable(line, 200));
}

Status NotUnderstood(std::string_view line) {
  return Error(StatusCode::kInternal, "memcached gave an answer that is no meta reply: {}",
               Printable(line));
}

iovec Part(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

}  // namespace

Status ExplainMetaGet(std::string_view line) {
  if (line == "EN") return Miss();
  if (IsError(line)) return Refused(StatusCode::kInternal, line);
  if (!line.starts_with("VA ")) return NotUnderstood(line);
  const std::string_view rest = line.substr(3);
  const std::string_view digits = rest.substr(0, rest.find(' '));
  if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) {
    return NotUnderstood(line);
  }
  return Error(StatusCode::kOutOfRange, "memcached has a value of {} bytes there", digits);
}

Status ExplainMetaSet(std::string_view line) {
  if (line == "NS") return Refused(StatusCode::kInternal, "not stored");
  if (!IsError(line)) return NotUnderstood(line);
  const bool no_room =
      line.find("out of memory") != line.npos || line.find("too large") != line.npos;
  return Refused(no_room ? StatusCode::kResourceExhausted : StatusCode::kInternal, line);
}

Status MemcachedClient::Get(std::string_view key, MutableBytes into) {
  request_.clear(), expected_.clear();
  fmt::format_to(std::back_inserter(request_), "mg {} v\r\n", key);
  fmt::format_to(std::back_inserter(expected_), "VA {}\r\n", into.size());
  std::array<iovec, 1> parts{Part(request_)};
  EMS_RETURN_IF_ERROR(socket_.Send(parts));
  EMS_ASSIGN_OR_RETURN(const std::string other, socket_.Read(expected_, into));
  return other.empty() ? OkStatus() : ExplainMetaGet(other);
}

Status MemcachedClient::Set(std::string_view key, ConstBytes value) {
  request_.clear();
  fmt::format_to(std::back_inserter(request_), "ms {} {}\r\n", key, value.size());
  std::array<iovec, 3> parts{Part(request_), Part(AsText(value)), Part(kLineEnd)};
  EMS_RETURN_IF_ERROR(socket_.Send(parts));
  EMS_ASSIGN_OR_RETURN(const std::string other, socket_.Read(kStored, {}));
  return other.empty() ? OkStatus() : ExplainMetaSet(other);
}

}  // namespace ems::bench
