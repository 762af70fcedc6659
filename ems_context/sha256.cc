#include "ems_context/sha256.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace ems::context {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

// libcrypto fails here only without memory or with SHA-256 disabled: nothing a caller could do
// better than stop.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EMS_CHECK(context_ != nullptr, "libcrypto has no memory for a digest");
  EMS_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
            "libcrypto offers no SHA-256");
}

Sha256Digest Sha256::Digest(ConstBytes message) {
  Sha256Digest digest;
  unsigned int digest_bytes = 0;
  // A null type starts a new message with the algorithm of the last one, without looking it up
  // again.
  const bool done =
      EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1 &&
      EVP_DigestUpdate(context_.get(), message.data(), message.size()) == 1 &&
      EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                         &digest_bytes) == 1;
  EMS_CHECK(done && digest_bytes == digest.size(), "SHA-256 of {} bytes failed", message.size());
  return digest;
}

}  // namespace ems::context
