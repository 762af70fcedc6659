#pragma once
// How long a test with a random part runs, and from which seed: a little in the suite, as long as
// wanted by hand (tests/nightly.sh, tests/README.md).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace ems::testing {

inline uint64_t NumberOfVariable(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// EMS_SEED, or a new one; printed.
inline uint64_t ChosenSeed() {
  const uint64_t seed = NumberOfVariable("EMS_SEED", std::random_device()());
  std::printf("seed %llu (EMS_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace ems::testing
