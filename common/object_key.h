#pragma once
// The name of an object inside its namespace: 1 to 512 opaque bytes (NUL and any encoding allowed),
// never interpreted.
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "common/bytes.h"
#include "common/hash.h"

namespace ems {

inline constexpr size_t kKeyBytesMax = 512;

// Errors: kInvalidArgument  empty, or longer than kKeyBytesMax
inline Status ValidateKey(std::string_view key) {
  if (!key.empty() && key.size() <= kKeyBytesMax) [[likely]]
    return OkStatus();
  return Error(StatusCode::kInvalidArgument, "key of {} bytes: 1 to {} are allowed", key.size(),
               kKeyBytesMax);
}

// 128-bit hash under which the index keeps a key. It only finds candidates: the full key decides.
inline Hash128 KeyHash(std::string_view key) { return HashTo128(AsBytes(key)); }

}  // namespace ems
