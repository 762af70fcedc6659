#include "bench/sides/peer_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace ems::bench {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

Status Refused(StatusCode code, PeerKind kind, std::string_view line) {
  return Error(code, "{}: {}", PeerName(kind), Printable(line, 200));
}

Status NotUnderstood(PeerKind kind, std::string_view line) {
  return Error(StatusCode::kInternal, "{} gave an answer that is no {}: {}", PeerName(kind),
               kind == PeerKind::kRedis ? "RESP2" : "meta reply", Printable(line));
}

// What the error that a line reports says; empty: it reports none.
std::string_view ErrorIn(PeerKind kind, std::string_view line) {
  if (kind == PeerKind::kRedis) return line.starts_with('-') ? line.substr(1) : "";
  const bool error = line == "ERROR" || line.starts_with("ERROR ") ||
                     line.starts_with("CLIENT_ERROR") || line.starts_with("SERVER_ERROR");
  return error ? line : "";
}

iovec Part(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

template <typename... Args>
void Format(std::string* text, fmt::format_string<Args...> format, Args&&... args) {
  text->clear();
  fmt::format_to(std::back_inserter(*text), format, std::forward<Args>(args)...);
}

}  // namespace

std::string_view PeerName(PeerKind kind) {
  return kind == PeerKind::kRedis ? "redis" : "memcached";
}

Status ExplainGet(PeerKind kind, std::string_view line) {
  const bool redis = kind == PeerKind::kRedis;
  if (redis ? line == "$-1" || line == "_" : line == "EN") return Miss();
  if (const auto error = ErrorIn(kind, line); !error.empty())
    return Refused(StatusCode::kInternal, kind, error);
  // "$LENGTH"; "VA LENGTH", behind which flags may stand.
  const std::string_view head = redis ? "$" : "VA ";
  std::string_view digits = line.substr(std::min(head.size(), line.size()));
  if (!redis) digits = digits.substr(0, digits.find(' '));
  const bool number = !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos;
  if (!line.starts_with(head) || !number) return NotUnderstood(kind, line);
  return Error(StatusCode::kOutOfRange, "{} has a value of {} bytes there", PeerName(kind), digits);
}

Status ExplainSet(PeerKind kind, std::string_view line) {
  const bool redis = kind == PeerKind::kRedis;
  if (!redis && line == "NS") return Refused(StatusCode::kInternal, kind, "not stored");
  const std::string_view error = ErrorIn(kind, line);
  if (error.empty()) return NotUnderstood(kind, line);
  const bool no_room =
      redis ? error.starts_with("OOM")
            : error.find("out of memory") != error.npos || error.find("too large") != error.npos;
  return Refused(no_room ? StatusCode::kResourceExhausted : StatusCode::kInternal, kind, error);
}

Result<PeerClient> PeerClient::Connect(PeerKind kind, const std::string& address) {
  EMS_ASSIGN_OR_RETURN(ReplySocket socket, ReplySocket::Connect(address));
  return PeerClient(kind, std::move(socket));
}

Status PeerClient::Get(std::string_view key, MutableBytes into) {
  if (kind_ == PeerKind::kRedis) {
    Format(&request_, "*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", key.size(), key);
    Format(&expected_, "${}\r\n", into.size());
  } else {
    Format(&request_, "mg {} v\r\n", key);
    Format(&expected_, "VA {}\r\n", into.size());
  }
  std::array<iovec, 1> parts{Part(request_)};
  EMS_RETURN_IF_ERROR(socket_.Send(parts));
  EMS_ASSIGN_OR_RETURN(const std::string other, socket_.Read(expected_, into));
  return other.empty() ? OkStatus() : ExplainGet(kind_, other);
}

Status PeerClient::Set(std::string_view key, ConstBytes value) {
  const bool redis = kind_ == PeerKind::kRedis;
  if (redis) {
    Format(&request_, "*3\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n", key.size(), key, value.size());
  } else {
    Format(&request_, "ms {} {}\r\n", key, value.size());
  }
  std::array<iovec, 3> parts{Part(request_), Part(AsText(value)), Part(kLineEnd)};
  EMS_RETURN_IF_ERROR(socket_.Send(parts));
  EMS_ASSIGN_OR_RETURN(const std::string other, socket_.Read(redis ? "+OK\r\n" : "HD\r\n", {}));
  return other.empty() ? OkStatus() : ExplainSet(kind_, other);
}

}  // namespace ems::bench
