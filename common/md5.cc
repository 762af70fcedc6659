// libcrypto's newer interface keeps its state to itself; the older one shows it.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "common/md5.h"

#include <openssl/evp.h>
#include <openssl/md5.h>

#include <bit>
#include <cstring>

#include "common/check.h"

namespace ems {
namespace {

static_assert(std::endian::native == std::endian::little, "Save copies words as they lie");

}  // namespace

// The older interface does not ask anybody: whether MD5 may be computed is what the newer one says.
Status Md5Stream::Offered() {
  EVP_MD* const md5 = EVP_MD_fetch(nullptr, "MD5", nullptr);
  EVP_MD_free(md5);
  if (md5 != nullptr) return OkStatus();
  return Error(StatusCode::kUnimplemented,
               "this machine's libcrypto offers no MD5 (is it in FIPS mode?)");
}

void Md5Stream::Update(ConstBytes part) {
  if (part.empty()) return;
  MD5_CTX context{};
  context.A = words_[0];
  context.B = words_[1];
  context.C = words_[2];
  context.D = words_[3];
  const uint64_t bits = bytes_ * 8;
  context.Nl = static_cast<uint32_t>(bits);
  context.Nh = static_cast<uint32_t>(bits >> 32);
  context.num = static_cast<unsigned int>(bytes_ % rest_.size());
  std::memcpy(context.data, rest_.data(), context.num);
  EMS_CHECK(MD5_Update(&context, part.data(), part.size()) == 1, "MD5 of {} bytes failed",
            part.size());
  words_ = {context.A, context.B, context.C, context.D};
  bytes_ += part.size();
  rest_ = {};
  std::memcpy(rest_.data(), context.data, bytes_ % rest_.size());
}

Md5Digest Md5Stream::Finish() {
  // RFC 1321, 3.1 and 3.2: a one bit, zeros, and the length in bits, to whole blocks.
  const uint64_t bits = bytes_ * 8;
  std::array<std::byte, 128> padding{};
  padding[0] = std::byte{0x80};
  const size_t used = bytes_ % rest_.size();
  const size_t size = (used < 56 ? 64 : 128) - used;
  std::memcpy(padding.data() + size - sizeof(bits), &bits, sizeof(bits));
  Update(ConstBytes(padding).first(size));
  Md5Digest digest;
  std::memcpy(digest.data(), words_.data(), digest.size());
  *this = Md5Stream();
  return digest;
}

std::string Md5Stream::Save() const {
  std::string saved(kSavedBytes, '\0');
  std::memcpy(saved.data(), words_.data(), 16);
  std::memcpy(saved.data() + 16, &bytes_, 8);
  std::memcpy(saved.data() + 24, rest_.data(), rest_.size());
  return saved;
}

Result<Md5Stream> Md5Stream::Restore(std::string_view saved) {
  if (saved.size() != kSavedBytes) {
    return Error(StatusCode::kInvalidArgument, "a state of MD5 has {} bytes, not {}", kSavedBytes,
                 saved.size());
  }
  Md5Stream stream;
  std::memcpy(stream.words_.data(), saved.data(), 16);
  std::memcpy(&stream.bytes_, saved.data() + 16, 8);
  std::memcpy(stream.rest_.data(), saved.data() + 24, stream.rest_.size());
  return stream;
}

}  // namespace ems
