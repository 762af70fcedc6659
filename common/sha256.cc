#include "common/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/check.h"

namespace ems {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

// libcrypto fails here only without memory or with SHA-256 disabled: nothing a caller could do
// better than stop.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EMS_CHECK(context_ != nullptr, "libcrypto has no memory for a digest");
  EMS_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
            "libcrypto offers no SHA-256");
}

Sha256Digest Sha256::Digest(ConstBytes message) {
  begun_ = false;
  Update(message);
  return Finish();
}

void Sha256::Update(ConstBytes part) {
  // A null type starts a new message with the algorithm of the last one, without looking it up
  // again.
  const bool done =
      (begun_ || EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1) &&
      (part.empty() || EVP_DigestUpdate(context_.get(), part.data(), part.size()) == 1);
  EMS_CHECK(done, "SHA-256 of {} bytes failed", part.size());
  begun_ = true;
}

Sha256Digest Sha256::Finish() {
  if (!begun_) Update({});
  begun_ = false;
  Sha256Digest digest;
  unsigned int digest_bytes = 0;
  const bool done =
      EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                         &digest_bytes) == 1;
  EMS_CHECK(done && digest_bytes == digest.size(), "SHA-256 did not end");
  return digest;
}

Sha256Digest HmacSha256(ConstBytes key, ConstBytes message) {
  Sha256Digest digest;
  unsigned int digest_bytes = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                          reinterpret_cast<unsigned char*>(digest.data()), &digest_bytes);
  EMS_CHECK(made != nullptr && digest_bytes == digest.size(), "HMAC of {} bytes failed",
            message.size());
  return digest;
}

std::optional<Md5Digest> Md5(ConstBytes message) {
  Md5Digest digest;
  unsigned int digest_bytes = 0;
  const bool done =
      EVP_Digest(message.data(), message.size(), reinterpret_cast<unsigned char*>(digest.data()),
                 &digest_bytes, EVP_md5(), nullptr) == 1;
  if (!done || digest_bytes != digest.size()) return std::nullopt;
  return digest;
}

}  // namespace ems
