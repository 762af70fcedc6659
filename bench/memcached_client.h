#pragma once
// Get and set of memcached over its meta commands "mg" and "ms"
// (https://docs.memcached.org/protocols/meta/).
#include <string>
#include <string_view>

#include "bench/peer_client.h"
#include "bench/reply_socket.h"

namespace ems::bench {

// Why an "mg" was not answered with the expected value; `line` is the reply's first line.
// Errors: kNotFound  "EN"    kOutOfRange  another length    kInternal  an error of memcached, or no
// reply to a meta command
Status ExplainMetaGet(std::string_view line);
// The same for an "ms" that was not answered "HD".
// Errors: kResourceExhausted  no memory, or a value above its -I    kInternal  anything else
Status ExplainMetaSet(std::string_view line);

class MemcachedClient final : public PeerClient {
 public:
  explicit MemcachedClient(ReplySocket socket) : socket_(std::move(socket)) {}
  Status Get(std::string_view key, MutableBytes into) override;
  Status Set(std::string_view key, ConstBytes value) override;

 private:
  ReplySocket socket_;
  std::string request_, expected_;  // kept for their memory
};

}  // namespace ems::bench
