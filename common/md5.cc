#include "common/md5.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace ems {

void Md5Stream::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Status Md5Stream::Offered() {
  EVP_MD* const md5 = EVP_MD_fetch(nullptr, "MD5", nullptr);
  EVP_MD_free(md5);
  if (md5 != nullptr) return OkStatus();
  return Error(StatusCode::kUnimplemented,
               "this machine's libcrypto offers no MD5 (is it in FIPS mode?)");
}

void Md5Stream::Update(ConstBytes part) {
  if (context_ == nullptr) context_.reset(EVP_MD_CTX_new());
  EMS_CHECK(context_ != nullptr, "libcrypto has no memory for a digest");
  const bool done =
      (begun_ || EVP_DigestInit_ex(context_.get(), EVP_md5(), nullptr) == 1) &&
      (part.empty() || EVP_DigestUpdate(context_.get(), part.data(), part.size()) == 1);
  EMS_CHECK(done, "MD5 of {} bytes failed", part.size());
  begun_ = true;
  bytes_ += part.size();
}

Md5Digest Md5Stream::Finish() {
  if (!begun_) Update({});
  begun_ = false;
  bytes_ = 0;
  Md5Digest digest;
  unsigned int digest_bytes = 0;
  const bool done =
      EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                         &digest_bytes) == 1;
  EMS_CHECK(done && digest_bytes == digest.size(), "MD5 did not end");
  return digest;
}

}  // namespace ems
