#pragma once
// GET and SET of redis over RESP2 (https://redis.io/docs/latest/develop/reference/protocol-spec/).
#include <string>
#include <string_view>

#include "bench/peer_client.h"
#include "bench/reply_socket.h"

namespace ems::bench {

// Why a GET was not answered with the expected value; `line` is the reply's first line.
// Errors: kNotFound  "$-1"    kOutOfRange  another length    kInternal  an error of redis, or no
// RESP
Status ExplainRespGet(std::string_view line);
// The same for a SET that was not answered "+OK".
// Errors: kResourceExhausted  out of memory    kInternal  another error, or no RESP
Status ExplainRespSet(std::string_view line);

class RespClient final : public PeerClient {
 public:
  explicit RespClient(ReplySocket socket) : socket_(std::move(socket)) {}
  Status Get(std::string_view key, MutableBytes into) override;
  Status Set(std::string_view key, ConstBytes value) override;

 private:
  ReplySocket socket_;
  std::string request_, expected_;  // kept for their memory
};

}  // namespace ems::bench
