#pragma once
// Batches of events as engines put them on the wire (msgpack), so that routers that follow engines
// follow the pool. A batch is a positional array. Two encodings of events are in use: positional
// arrays with the event's name in front (vLLM until June 2026, SGLang), and maps with the name
// under "type" (vLLM since).
//
//   batch          [ts, [event, …], nil]
//   BlockStored    hashes, parent nil, token_ids [], block_size, lora_id nil, medium, lora_name nil
//   BlockRemoved   hashes, medium
//   AllBlocksCleared
//
// Fields at their defaults behind these are left out. Which tokens a block holds, and which block
// is in front of it, a pool of opaque keys does not know.
#include <span>
#include <string>

#include "mp_server/kv_events/block_events.h"

namespace ems::kv_events {

enum class Encoding : uint8_t { kArrays, kMaps };
enum class HashForm : uint8_t {
  kBytes,   // 16 bytes, as XXH3-128 is written: the larger half first, big-endian
  kNumber,  // its last 8 bytes, as a big-endian number
};

// Threading: immutable.
class EventEncoder final {
 public:
  struct Options {
    Encoding encoding = Encoding::kArrays;
    HashForm hash_form = HashForm::kBytes;
    uint32_t block_tokens = 0;  // block_size; 0: not known
  };
  explicit EventEncoder(const Options& options) : options_(options) {}

  // A whole batch. `seconds`: since 1970. `cleared`: begins with AllBlocksCleared. Neighbours of
  // one kind and medium share an event. Cost: one allocation or few, about 20 bytes an event.
  std::string Batch(double seconds, bool cleared, std::span<const BlockEvent> events) const;

 private:
  const Options options_;
};

}  // namespace ems::kv_events
