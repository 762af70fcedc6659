#pragma once
// Values that prove where they come from: every byte is a function of (namespace, key, put id,
// offset), so any read shows by itself whether it is one whole value of that key, without
// remembering what was written.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/hash.h"

namespace ems::testing {

// The first 8 bytes, if there are so many, hold the put id; the rest is a keyed stream.
inline void FillValue(std::string_view ns, std::string_view key, uint64_t put_id,
                      MutableBytes value) {
  const uint64_t seed = Hash64(AsBytes(ns), Hash64(AsBytes(key), put_id)) | 1;
  uint64_t state = seed;
  for (size_t at = 0; at < value.size(); at += 8) {
    uint64_t word = put_id;
    if (at > 0) {
      state += 0x9e3779b97f4a7c15;
      word = (state ^ (state >> 31)) * 0xbf58476d1ce4e5b9;
    }
    std::memcpy(value.data() + at, &word, std::min<size_t>(8, value.size() - at));
  }
}

inline std::string MakeValue(std::string_view ns, std::string_view key, uint64_t put_id,
                             size_t bytes) {
  std::string value(bytes, '\0');
  FillValue(ns, key, put_id, std::as_writable_bytes(std::span(value)));
  return value;
}

// The put id that `value` was made with, or nullopt when it is not a whole value of (ns, key).
// Values of 8 bytes or more.
inline std::optional<uint64_t> VerifyValue(std::string_view ns, std::string_view key,
                                           std::string_view value) {
  if (value.size() < 8) return std::nullopt;
  uint64_t put_id = 0;
  std::memcpy(&put_id, value.data(), 8);
  if (MakeValue(ns, key, put_id, value.size()) != value) return std::nullopt;
  return put_id;
}

}  // namespace ems::testing
