#pragma once
// The identity that a process reports when a peer connects to it, and the check that the two fit
// together.
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

// An instance of this process, served to peers in others; its end ends all calls. Threading:
// thread-safe.
class InstanceService {
 public:
  virtual ~InstanceService() = default;
  virtual const std::string& address() const = 0;  // as bound
  virtual const InstanceInfo& instance() const = 0;
};

// Whether `info` may exchange KV and tokens with this one, which is `own`: its fingerprint, blocks
// and storage are the same, and its context_tokens no fewer: it would refuse a request in the midst
// of its answer. Errors: kFailedPrecondition  says what differs, and how
Status CheckFits(const InstanceInfo& info, const InstanceInfo& own);

}  // namespace ems::pdc
