#pragma once
// One side of a comparison on one machine: EMS, plain memory, or another cache. All hold the same
// values and are asked for them in the same order.
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/value_set.h"
#include "common/bytes.h"
#include "common/status.h"

namespace ems::bench {

enum class SideOp {
  kGet,          // copy a value out, no checksum
  kGetChecked,   // the same, its checksum verified
  kGetView,      // the value in place, and letting it go
  kExists,       // one key
  kLookup,       // kLookupKeys keys in one call
  kPut,          // copy a value in, from memory that the servers can read
  kPutBatch,     // the same, several in a call
  kPutOrdinary,  // copy a value in, from ordinary memory
};
inline constexpr SideOp kAllOps[] = {SideOp::kGet,      SideOp::kGetChecked, SideOp::kGetView,
                                     SideOp::kExists,   SideOp::kLookup,     SideOp::kPut,
                                     SideOp::kPutBatch, SideOp::kPutOrdinary};
inline constexpr uint64_t kLookupKeys = 1000;
std::string_view OpName(SideOp op);   // "Get"
std::string_view OpTitle(SideOp op);  // "Get, checksum off": as tables name it
constexpr bool IsPut(SideOp op) {
  return op == SideOp::kPut || op == SideOp::kPutBatch || op == SideOp::kPutOrdinary;
}
// What another side does that does not know this operation: its plain Get, or its Set.
constexpr SideOp Counterpart(SideOp op) { return IsPut(op) ? SideOp::kPutOrdinary : SideOp::kGet; }
constexpr bool IsGet(SideOp op) { return op == SideOp::kGet || op == SideOp::kGetChecked; }
constexpr bool MovesBytes(SideOp op) { return IsGet(op) || IsPut(op); }

// The calls that are measured in one go: object i has key i and lies in buffer i. Borrows
// everything.
struct Stretch {
  std::span<const uint64_t> objects;
  std::span<const std::string_view>
      keys;                      // one after the other in memory: who asks has them at hand
  std::byte* buffers = nullptr;  // null: the operation moves no bytes
  uint64_t value_bytes = 0;
  MutableBytes Buffer(uint64_t i) const { return {buffers + i * value_bytes, value_bytes}; }
};

// Threading: Call and View from several threads, each with its own `caller`; the rest from one.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual const std::string& name() const = 0;
  virtual std::vector<SideOp> ops() const = 0;
  // By which values are stored at first.
  virtual SideOp load_op() const = 0;
  // Where its CPU time is spent besides this process.
  virtual std::vector<pid_t> server_pids() const { return {}; }
  // The memory that values of `op` are put from; empty: the bench's own.
  virtual MutableBytes PutMemory(SideOp /*op*/) const { return {}; }
  // Reads so far that needed no help of a server.
  virtual uint64_t one_sided() const { return 0; }

  // Does `op` for objects [first, first + count) of the stretch; count is 1 but for kPutBatch.
  // Errors: kNotFound  an object is missing; others as they come
  virtual Status Call(SideOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
                      uint64_t count) = 0;
  // Shows an object's bytes in place, for who offers kGetView.
  virtual Status View(uint64_t object, const std::function<void(ConstBytes)>& look);
};

}  // namespace ems::bench
