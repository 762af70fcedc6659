#pragma once
// Who serves at the other end: what a process says of itself when it is asked, and whether that
// fits.
#include <cstdint>
#include <string>

#include "common/status.h"
#include "pdc/engine/kv_arena.h"

namespace ems::pdc {

// Bounds of what an instance may say of itself; requests are bounded by them in turn.
inline constexpr uint32_t kVocabMax = 1 << 24;
inline constexpr uint32_t kPositionsMax = 1 << 20;

// Threading: a value.
struct InstanceInfo {
  std::string name{};         // of the instance
  std::string model{};        // name of the model
  std::string fingerprint{};  // Model::Fingerprint: instances of equal ones compute equal KV
  uint32_t block_tokens = 0;
  KvStorage storage = KvStorage::kBf16;
  uint32_t vocab = 0;
  uint32_t positions_max = 0;
  uint32_t context_tokens = 0;     // longest prompt and answer together that its KV holds
  uint64_t incarnation = 0;        // another one after each start; not 0
  std::string ring_socket_path{};  // where rings are offered; of prefill instances alone
};

// A number that no other start has had. Not 0.
uint64_t NewIncarnation();

// Errors: kInvalidArgument  no name or fingerprint, a number or length out of bounds
Status CheckInstance(const InstanceInfo& info);

// What an instance must be, to exchange KV and tokens with this one.
struct InstanceExpectation {
  std::string fingerprint{};
  uint32_t block_tokens = 0;
  KvStorage storage = KvStorage::kBf16;
  // What this one may ask for: who holds less would refuse a request in the midst of its answer.
  uint32_t context_tokens = 0;
};
// Errors: kFailedPrecondition  says what differs, and how
Status CheckFits(const InstanceInfo& info, const InstanceExpectation& expected);

}  // namespace ems::pdc
