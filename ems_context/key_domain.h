#pragma once
// The domain of KV blocks: the properties, beside their tokens, that must be equal before one block
// may be used for another.
//
// Invariant: two domains that differ in any field have different encodings: every field carries a
// tag and its length, every list its count, so no bytes can move from one field to the next. Bound:
// 64 KiB a field, 4096 entries a list.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace ems::context {

// Threading: a value. Fields that an engine does not have stay at their defaults.
struct KeyDomain {
  std::string model;      // fingerprint of the weights, not just a name
  std::string dtype;      // of the KV elements: "bf16", "fp8_e4m3"
  std::string kv_layout;  // order and shape of the bytes in a block: "mla/61x576", "NHD/80x8x128"
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t pp_rank = 0;
  uint32_t pp_size = 1;
  std::string lora;        // adapter fingerprint; empty: none
  std::string cache_salt;  // tenants with different salts share nothing
  // Full hashes of images, audio, … with their positions, in prompt order: {"<sha256>@<first
  // token>", …}.
  std::vector<std::string> multimodal_hashes;
  // Whatever else an engine tells apart: cache group, draft model, rope scaling. In the engine's
  // order.
  std::vector<std::pair<std::string, std::string>> custom;

  friend bool operator==(const KeyDomain&, const KeyDomain&) = default;
};

// The bytes that stand for `domain` in every key.
// Errors: kInvalidArgument  a field or list above its bound, a rank not below its size; names the
// field
Result<std::string> EncodeDomain(const KeyDomain& domain);

}  // namespace ems::context
