#pragma once
// Options of a client, and of each call.
#include <cstdint>
#include <string>
#include <string_view>

#include "cluster/view_cache.h"
#include "common/bytes.h"
#include "common/clock.h"

namespace ems {

enum class TransportChoice : uint8_t {
  kAuto,  // a server on this machine: one-sided reads of its memory, its Unix socket for the rest;
          // TCP otherwise
  kTcp,
  kUnix,
};

struct ClientOptions {
  std::string controller = "127.0.0.1:7400";  // of several: all of them, separated by commas
  std::string name_space = "default";
  TransportChoice transport = TransportChoice::kAuto;
  // Streams to one server; a call takes one for itself, further calls wait for one within their
  // deadline.
  uint32_t connections_per_server_max = 8;
  uint32_t async_threads = 2;       // threads that run the Async calls
  uint32_t async_queue_max = 4096;  // Async calls waiting for one; beyond it they fail at once
  Duration connect_timeout = std::chrono::milliseconds(200);
  // Default deadline of a call: op_timeout + its bytes at 100 MB/s, 30 s at most. A call may set
  // its own.
  Duration op_timeout = std::chrono::seconds(1);
  // How long Connect waits for the controller's first view and the namespace.
  Duration start_timeout = std::chrono::seconds(5);
  // Most memory for Puts that servers of this host read in place: AllocateBuffer hands it out, and
  // large values are copied there. Made as it is needed, from 16 MiB on, and kept.
  uint64_t staging_bytes = 256 * kMiB;
  // For servers of this host that ask for one before they share memory (shm.token_file).
  std::string shm_token;
};

struct PutOptions {
  bool overwrite = false;  // replace a value with other content instead of AlreadyExists
  Durability durability = Durability::kDefault;  // kDefault: as the namespace says
  Duration timeout{0};                           // 0: the client's default
  std::string_view route_key{};                  // empty: the key itself; decides which server
};

// The reads that verify the value's checksum. It matters for one-sided reads; values that come over
// a socket are always verified.
enum class Verify : uint8_t {
  kDefault,  // as the namespace says
  kAlways,   // one pass over the bytes
  kSampled,  // one read in 64
  kNever,    // header and key are verified, the value is not
};

struct GetOptions {
  bool touch = true;  // counts as a use for LRU
  Verify verify = Verify::kDefault;
  Duration timeout{0};
  std::string_view route_key{};
};

// One value as the caller has it: one span, or several in order. Borrows everything.
class ConstBuffers final {
 public:
  ConstBuffers() = default;
  ConstBuffers(ConstBytes one) : one_(one) {}  // NOLINT(google-explicit-constructor)
  ConstBuffers(std::string_view text)
      : one_(AsBytes(text)) {}  // NOLINT(google-explicit-constructor)
  ConstBuffers(std::span<const ConstBytes> many) : many_(many), is_many_(true) {}  // NOLINT
  std::span<const ConstBytes> parts() const { return is_many_ ? many_ : std::span(&one_, 1); }
  uint64_t size_bytes() const {
    uint64_t total = 0;
    for (const ConstBytes part : parts()) total += part.size();
    return total;
  }

 private:
  ConstBytes one_;
  std::span<const ConstBytes> many_;
  bool is_many_ = false;
};

// Room for one value: one span, or several in order. Borrows everything.
class MutableBuffers final {
 public:
  MutableBuffers() = default;
  MutableBuffers(MutableBytes one) : one_(one) {}  // NOLINT(google-explicit-constructor)
  MutableBuffers(std::span<const MutableBytes> many) : many_(many), is_many_(true) {}  // NOLINT
  std::span<const MutableBytes> parts() const { return is_many_ ? many_ : std::span(&one_, 1); }
  uint64_t size_bytes() const {
    uint64_t total = 0;
    for (const MutableBytes part : parts()) total += part.size();
    return total;
  }

 private:
  MutableBytes one_;
  std::span<const MutableBytes> many_;
  bool is_many_ = false;
};

// The memory of its server that a value was in.
enum class Tier : uint8_t { kUnknown, kDram, kSsd };

struct PutItem {
  std::string_view key;
  ConstBuffers value;
  std::string_view route_key{};
};
struct GetItem {
  std::string_view key;
  MutableBuffers into;
  std::string_view route_key{};
  Tier* tier = nullptr;         // where the value was, when the item succeeds; null: nobody asks
  std::string* grow = nullptr;  // allocated to fit the value, which comes here instead of `into`
};
// A part of a value.
struct RangeItem {
  std::string_view key;
  uint64_t offset = 0;
  MutableBuffers into;       // bytes [offset, offset + into.size_bytes())
  uint64_t whole_bytes = 0;  // what the whole value must be long; 0: anything
  std::string_view route_key{};
  Tier* tier = nullptr;  // as GetItem's
};
struct KeyItem {
  std::string_view key;
  std::string_view route_key{};
};
struct ObjectStat {
  uint64_t bytes = 0;
  Tier tier = Tier::kUnknown;  // kDram also when it is on the SSD as well
};

}  // namespace ems
