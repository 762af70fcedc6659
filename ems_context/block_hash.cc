#include "ems_context/block_hash.h"

#include <bit>
#include <cstring>

#include "common/bytes.h"
#include "common/hash.h"
#include "common/object_key.h"
#include "common/sha256.h"

namespace ems::context {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tokens and lengths are hashed as they lie in memory");

constexpr size_t kXxh3KeyBytes = 16;
constexpr char kBlockTag = 'B';
constexpr char kOwnTag = 'K';

// Hashes one message after another, each put together in the same scratch memory. Threading: one
// thread.
class MessageHasher final {
 public:
  explicit MessageHasher(HashKind kind) : kind_(kind) {}

  // H(tag | parent | u32 count | bytes)
  std::string Hash(char tag, std::string_view parent, size_t count, ConstBytes bytes) {
    const auto count32 = static_cast<uint32_t>(count);
    message_.clear();
    message_.push_back(tag);
    message_.append(parent);
    message_.append(reinterpret_cast<const char*>(&count32), sizeof count32);
    message_.append(AsText(bytes));
    return Digest();
  }

 private:
  std::string Digest() {
    if (kind_ == HashKind::kSha256) return std::string(AsText(sha256_.Digest(AsBytes(message_))));
    const Hash128 hash = HashTo128(AsBytes(message_));
    std::string key(kXxh3KeyBytes, '\0');
    std::memcpy(key.data(), &hash.lo, 8);
    std::memcpy(key.data() + 8, &hash.hi, 8);
    return key;
  }

  HashKind kind_;
  Sha256 sha256_;
  std::string message_;
};

}  // namespace

Result<BlockHasher> BlockHasher::Make(const KeyDomain& domain, HashKind kind,
                                      uint32_t block_tokens) {
  if (block_tokens < kBlockTokensMin || block_tokens > kBlockTokensMax)
    return Error(StatusCode::kInvalidArgument, "block of {} tokens: {} to {} are allowed",
                 block_tokens, kBlockTokensMin, kBlockTokensMax);
  EMS_ASSIGN_OR_RETURN(const std::string encoded, EncodeDomain(domain));
  std::string root(AsText(Sha256().Digest(AsBytes(encoded))));
  if (kind == HashKind::kXxh3) root.resize(kXxh3KeyBytes);
  return BlockHasher(kind, block_tokens, std::move(root));
}

std::vector<std::string> BlockHasher::HashTokens(std::span<const int32_t> tokens,
                                                 std::string_view parent) const {
  std::vector<std::string> keys;
  keys.reserve(tokens.size() / block_tokens_);
  MessageHasher hasher(kind_);
  if (parent.empty()) parent = root_;
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_)) {
    const auto block = tokens.first(block_tokens_);
    keys.push_back(hasher.Hash(kBlockTag, parent, block.size(), std::as_bytes(block)));
    parent = keys.back();
  }
  return keys;
}

Result<std::vector<std::string>> BlockHasher::OwnKeys(
    std::span<const std::string_view> names) const {
  std::vector<std::string> keys;
  keys.reserve(names.size());
  MessageHasher hasher(kind_);
  for (const std::string_view name : names) {
    EMS_RETURN_IF_ERROR(ValidateKey(name));
    keys.push_back(hasher.Hash(kOwnTag, root_, name.size(), AsBytes(name)));
  }
  return keys;
}

Result<std::string> BlockHasher::OwnKey(std::string_view name) const {
  EMS_RETURN_IF_ERROR(ValidateKey(name));
  return MessageHasher(kind_).Hash(kOwnTag, root_, name.size(), AsBytes(name));
}

}  // namespace ems::context
