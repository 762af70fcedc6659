#pragma once
// Names of KV blocks: key = H(parent key, tokens, domain), so equal keys imply equal whole prefixes
// in equal domains.
//
//   D       = SHA-256(EncodeDomain(domain))                 first 16 bytes of it for xxh3_128
//   key[i]  = H('B' | key[i-1] | u32 token count | tokens)   key[-1] = D, tokens int32, all
//   little-endian own key = H('K' | D | u32 length | bytes)                for engines that hash
//   for themselves
//
// Keys are 32 bytes with SHA-256 and 16 with xxh3_128, so that the two kinds never meet either.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "ems_context/key_domain.h"

namespace ems::context {

inline constexpr uint32_t kBlockTokensMin = 16;
inline constexpr uint32_t kBlockTokensMax = 512;
inline constexpr uint32_t kBlockTokensDefault = 128;

enum class HashKind : uint8_t {
  kSha256,  // collisions cannot be made: for tenants who do not trust each other
  kXxh3,    // xxh3_128, several times faster: for one tenant, who has no reason to attack himself
};

// Threading: immutable; safe from any thread.
class BlockHasher final {
 public:
  // Errors: kInvalidArgument  block_tokens out of 16–512, or a bad domain
  static Result<BlockHasher> Make(const KeyDomain& domain, HashKind kind = HashKind::kSha256,
                                  uint32_t block_tokens = kBlockTokensDefault);

  // Keys of the full blocks of `tokens`; a last block that is not full has none.
  // Shape: `tokens` is [n], the result is [n / block_tokens()]. `parent` is the key of the block
  // before tokens[0]; empty when they start the prompt. It must come from a hasher of the same
  // domain, kind and block size. Cost: O(n): SHA-256 0.5–2 GB/s, xxh3_128 about memory speed; one
  // allocation a key and three a call.
  std::vector<std::string> HashTokens(std::span<const int32_t> tokens,
                                      std::string_view parent = {}) const;

  // The key of a block that the engine has named itself. Names of different domains never meet, nor
  // do they meet hashed tokens. An engine whose names already tell domains apart may use them
  // directly as keys instead. Errors: kInvalidArgument  empty or above 512 bytes
  Result<std::string> OwnKey(std::string_view name) const;
  // The keys of many names, in their order, at a fraction of the cost of one after the other.
  // Errors: as above, for the first bad name
  Result<std::vector<std::string>> OwnKeys(std::span<const std::string_view> names) const;

  uint32_t block_tokens() const { return block_tokens_; }
  HashKind kind() const { return kind_; }

 private:
  BlockHasher(HashKind kind, uint32_t block_tokens, std::string root)
      : kind_(kind), block_tokens_(block_tokens), root_(std::move(root)) {}

  HashKind kind_;
  uint32_t block_tokens_;
  std::string root_;  // D
};

}  // namespace ems::context
