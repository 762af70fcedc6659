#include "ems_context/hash_recipes.h"

#include "common/bytes.h"
#include "common/hash.h"
#include "common/sha256.h"

namespace ems::context {
namespace {

// RFC 8949, the few types that are needed, each in its shortest form (canonical).
enum class CborType : uint8_t { kUnsigned = 0, kNegative = 1, kBytes = 2, kText = 3, kArray = 4 };
constexpr char kCborNull = '\xf6';

void AppendBigEndian(uint64_t value, int bytes, std::string* to) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8)
    to->push_back(static_cast<char>(value >> shift));
}

void AppendHead(CborType type, uint64_t value, std::string* to) {
  const auto head = [&](uint64_t low) {
    to->push_back(static_cast<char>(static_cast<uint64_t>(type) << 5 | low));
  };
  if (value < 24) return head(value);
  const int bytes = value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : value <= UINT32_MAX ? 4 : 8;
  head(bytes == 1 ? 24 : bytes == 2 ? 25 : bytes == 4 ? 26 : 27);
  AppendBigEndian(value, bytes, to);
}

void AppendInteger(int64_t value, std::string* to) {
  if (value >= 0) return AppendHead(CborType::kUnsigned, static_cast<uint64_t>(value), to);
  AppendHead(CborType::kNegative, ~static_cast<uint64_t>(value), to);  // -1 - value
}

void AppendString(CborType type, std::string_view value, std::string* to) {
  AppendHead(type, value.size(), to);
  to->append(value);
}

void AppendExtra(const ExtraKey& key, std::string* to) {
  if (const auto* text = std::get_if<std::string>(&key)) {
    AppendString(CborType::kText, *text, to);
  } else if (const auto* raw = std::get_if<ExtraBytes>(&key)) {
    AppendString(CborType::kBytes, raw->bytes, to);
  } else {
    const auto& [identifier, offset] = std::get<2>(key);
    AppendHead(CborType::kArray, 2, to);
    AppendString(CborType::kText, identifier, to);
    AppendInteger(offset, to);
  }
}

std::string Digest(VllmHash hash, std::string_view message, Sha256* sha256) {
  if (hash == VllmHash::kSha256Cbor) return std::string(AsText(sha256->Digest(AsBytes(message))));
  const Hash128 sum = HashTo128(AsBytes(message));
  std::string digest;  // xxHash's canonical form
  AppendBigEndian(sum.hi, 8, &digest);
  AppendBigEndian(sum.lo, 8, &digest);
  return digest;
}

std::string BlockHash(VllmHash hash, std::string_view parent, std::span<const int32_t> tokens,
                      std::span<const ExtraKey> extra, Sha256* sha256, std::string* scratch) {
  scratch->clear();
  AppendHead(CborType::kArray, 3, scratch);
  AppendString(CborType::kBytes, parent, scratch);
  AppendHead(CborType::kArray, tokens.size(), scratch);
  for (const int32_t token : tokens) AppendInteger(token, scratch);
  if (extra.empty()) {
    scratch->push_back(kCborNull);
  } else {
    AppendHead(CborType::kArray, extra.size(), scratch);
    for (const ExtraKey& key : extra) AppendExtra(key, scratch);
  }
  return Digest(hash, *scratch, sha256);
}

unsigned FromHex(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a') + 10;
  if (digit >= 'A' && digit <= 'F') return static_cast<unsigned>(digit - 'A') + 10;
  return 0;
}

std::string PageHash(std::string_view parent, std::span<const int32_t> tokens, Sha256* sha256,
                     std::string* scratch) {
  scratch->clear();
  for (size_t i = 0; i + 1 < parent.size(); i += 2)
    scratch->push_back(static_cast<char>(FromHex(parent[i]) << 4 | FromHex(parent[i + 1])));
  for (const int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8)
      scratch->push_back(static_cast<char>(static_cast<uint32_t>(token) >> shift));
  }
  return ToHex(sha256->Digest(AsBytes(*scratch)));
}

// Calls hash(parent, block's tokens, block's number) for each full block; each is the parent of the
// next.
template <typename Hash>
std::vector<std::string> Chain(std::string_view parent, std::span<const int32_t> tokens,
                               uint32_t block_tokens, Hash hash) {
  std::vector<std::string> hashes;
  if (block_tokens == 0) return hashes;
  hashes.reserve(tokens.size() / block_tokens);  // so that `parent` stays where it is
  for (; tokens.size() >= block_tokens; tokens = tokens.subspan(block_tokens)) {
    hashes.push_back(hash(parent, tokens.first(block_tokens), hashes.size()));
    parent = hashes.back();
  }
  return hashes;
}

}  // namespace

std::string VllmNoneHash(VllmHash hash, std::string_view seed) {
  Sha256 sha256;
  std::string message;
  AppendString(CborType::kText, seed, &message);
  return Digest(hash, message, &sha256);
}

std::string VllmBlockHash(VllmHash hash, std::string_view parent, std::span<const int32_t> tokens,
                          std::span<const ExtraKey> extra) {
  Sha256 sha256;
  std::string scratch;
  return BlockHash(hash, parent, tokens, extra, &sha256, &scratch);
}

std::vector<std::string> VllmBlockHashes(VllmHash hash, std::string_view parent,
                                         std::span<const int32_t> tokens, uint32_t block_tokens,
                                         std::span<const std::vector<ExtraKey>> extra) {
  Sha256 sha256;
  std::string scratch;
  return Chain(parent, tokens, block_tokens,
               [&](std::string_view before, std::span<const int32_t> block, size_t number) {
                 const auto keys = number < extra.size() ? std::span<const ExtraKey>(extra[number])
                                                         : std::span<const ExtraKey>();
                 return BlockHash(hash, before, block, keys, &sha256, &scratch);
               });
}

std::string VllmGroupKey(std::string_view hash, uint32_t group) {
  std::string key(hash);
  AppendBigEndian(group, 4, &key);
  return key;
}

std::string SglangPageHash(std::string_view parent, std::span<const int32_t> tokens) {
  Sha256 sha256;
  std::string scratch;
  return PageHash(parent, tokens, &sha256, &scratch);
}

std::vector<std::string> SglangPageHashes(std::string_view parent, std::span<const int32_t> tokens,
                                          uint32_t page_tokens) {
  Sha256 sha256;
  std::string scratch;
  return Chain(parent, tokens, page_tokens,
               [&](std::string_view before, std::span<const int32_t> page, size_t) {
                 return PageHash(before, page, &sha256, &scratch);
               });
}

}  // namespace ems::context
