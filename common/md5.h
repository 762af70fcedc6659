#pragma once
// MD5 of a message that comes in parts. Against damage alone: an adversary can make MD5 collide.
#include <cstdint>
#include <memory>

#include "common/bytes.h"
#include "common/sha256.h"
#include "common/status.h"

namespace ems {

// Threading: one thread. Cost: its bytes at about 0.6 GB/s; no allocation after the first Update.
class Md5Stream final {
 public:
  // Whether libcrypto lets it be computed here: ask before the first Update, which aborts where it
  // does not. Errors: kUnimplemented  it does not, as in FIPS mode
  static Status Offered();

  void Update(ConstBytes part);
  uint64_t bytes() const { return bytes_; }  // that have come
  // The digest of all that has come; the next message begins.
  Md5Digest Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
  bool begun_ = false;  // parts have come since the last Finish
  uint64_t bytes_ = 0;
};

}  // namespace ems
