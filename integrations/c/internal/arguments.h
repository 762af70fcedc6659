#pragma once
// Checks and conversions of the arguments that C callers pass: code behind these functions sees no
// NULL, no unknown size and no number out of range.
//
// All errors are kInvalidArgument and name the argument. Bound: those of ems.h.
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"
#include "integrations/c/ems.h"
#include "mp_sdk/options.h"

namespace ems::capi {

// No struct of options will ever be larger.
inline constexpr size_t kOptionsBytesMax = 4096;

Status NotNull(const void* pointer, std::string_view name);
Status InRange(uint64_t value, uint64_t least, uint64_t most, std::string_view name);

// --- Options. The first version of each struct is the least that a caller can have.

Status CheckOptionsSize(size_t size, size_t least, std::string_view type);
// Bytes that this library does not know must be 0: they ask for nothing.
Status CheckTail(const void* options, size_t known, size_t size, std::string_view type);

// Sets a struct of `size` bytes to `defaults`, and what this library does not know to 0.
template <typename Options>
Status InitOptions(Options* options, size_t size, const Options& defaults, std::string_view type) {
  EMS_RETURN_IF_ERROR(NotNull(options, "options"));
  EMS_RETURN_IF_ERROR(CheckOptionsSize(size, sizeof(Options), type));
  std::memset(static_cast<void*>(options), 0, size);
  *options = defaults;
  options->size = size;
  return OkStatus();
}

// `given` (NULL: none) over `defaults`.
template <typename Options>
Result<Options> ReadOptions(const Options* given, const Options& defaults, std::string_view type) {
  if (given == nullptr) return defaults;
  EMS_RETURN_IF_ERROR(CheckOptionsSize(given->size, sizeof(Options), type));
  EMS_RETURN_IF_ERROR(CheckTail(given, sizeof(Options), given->size, type));
  return *given;
}

ems_client_options DefaultClientOptions();
ems_context_options DefaultContextOptions();
ems_call_options DefaultCallOptions();

Result<ClientOptions> ToClientOptions(const ems_client_options* given);
Result<Durability> ToDurability(uint32_t given);

// The options of a call, as the SDK takes them. route_key is borrowed.
struct CallChoice {
  PutOptions put;
  GetOptions get;
  Duration timeout() const { return get.timeout; }
  void SetTimeout(Duration timeout) { put.timeout = get.timeout = timeout; }
};
Result<CallChoice> ToCallChoice(const ems_call_options* given);

// --- Keys and memory

Result<std::string_view> ToKey(const void* key, size_t size, std::string_view name = "key");
// The number of bytes. Errors: no pieces or above EMS_PIECES_MAX, a piece without memory, 0 bytes
// in all, more than an address space
Result<uint64_t> CheckPieces(const ems_pieces* pieces, std::string_view name);

// Appends `pieces`, which are checked, to `parts`.
template <typename Bytes>
void AppendParts(const ems_pieces& pieces, std::vector<Bytes>* parts) {
  for (size_t i = 0; i < pieces.count; ++i) {
    const ems_iov& piece = pieces.iov[i];
    if (piece.size > 0) parts->push_back(Bytes(static_cast<std::byte*>(piece.base), piece.size));
  }
}

// `pieces`, which are checked, as the SDK wants them. Those of several are kept in `parts`, which
// must not move while others are in it. One piece travels as such: only then can it be known for
// staging memory.
template <typename Buffers, typename Bytes>
Buffers AsBuffers(const ems_pieces& pieces, std::vector<Bytes>* parts) {
  if (pieces.count == 1) {
    return Buffers(Bytes(static_cast<std::byte*>(pieces.iov[0].base), pieces.iov[0].size));
  }
  const size_t at = parts->size();
  EMS_CHECK(at == 0 || parts->capacity() - at >= pieces.count, "the pieces kept before would move");
  parts->reserve(at + pieces.count);
  AppendParts(pieces, parts);
  const auto mine = std::span<const Bytes>(*parts).subspan(at);
  return mine.size() == 1 ? Buffers(mine[0]) : Buffers(mine);
}

}  // namespace ems::capi
