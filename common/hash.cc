#include "common/hash.h"

#define XXH_STATIC_LINKING_ONLY  // for the size of the streaming state
#include <xxhash.h>

// On x86 the library carries SSE2, AVX2 and AVX-512 versions and picks one at run time; elsewhere
// (NEON) the best one is compiled in.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#include "common/check.h"

namespace ems {

struct Hash64Stream::State {
  XXH3_state_t xxh;
};

uint64_t Hash64(ConstBytes bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 HashTo128(ConstBytes bytes, uint64_t seed) {
  const XXH128_hash_t h = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return {h.low64, h.high64};
}

Hash64Stream::Hash64Stream() : state_(std::make_unique<State>()) { Reset(); }
Hash64Stream::~Hash64Stream() = default;

void Hash64Stream::Reset() { EMS_CHECK(XXH3_64bits_reset(&state_->xxh) == XXH_OK); }

void Hash64Stream::Update(ConstBytes bytes) {
  EMS_CHECK(XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size()) == XXH_OK);
}

uint64_t Hash64Stream::Digest() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace ems
