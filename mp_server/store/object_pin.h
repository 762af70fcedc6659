#pragma once
// A published object that cannot go away while a pin on it lives.
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/bytes.h"

namespace ems::server {

class NamespaceObjects;
class ObjectEntry;

// Move-only; must not outlive the store.
// Threading: one thread at a time (holder).
class ObjectPin final {
 public:
  ObjectPin() = default;
  // Takes one hold of `entry` over. `objects` stay as long as the pin.
  ObjectPin(std::shared_ptr<NamespaceObjects> objects, ObjectEntry* entry);
  ConstBytes value() const;
  uint64_t checksum() const;
  // XXH3-64 of each 64 KiB piece; PieceCount(value().size()) of them.
  std::span<const uint64_t> piece_sums() const;
  std::string_view key() const;
  uint16_t slot() const;
  // Whether the key still leads to it.
  bool linked() const;
  // Whether value and piece sums are still what was published. Cost: one pass over the value.
  bool Intact() const;
  // Takes it out of DRAM as damaged, if the key still leads to it: once for all that find it so.
  // Other pins keep its bytes until they are released. While it is settling it stays.
  void DropDamaged() const;
  // Whether it was published as settling (PublishOptions), and is so still.
  bool settling() const;
  // From now on it may be evicted.
  void Settle() const;
  // A write of it to another tier begins, or has ended: in between it is not evicted.
  void BeginWrite() const;
  void EndWrite() const;
  // Settles it and takes it out of DRAM again, if the key still leads to it.
  void Withdraw() const;
  // Where it is kept for another owner of its slot, it is not any more.
  void ForgetKept() const;
  // Another pin on the same object.
  ObjectPin Share() const;
  explicit operator bool() const { return entry_ != nullptr; }

 private:
  struct Unpin {
    void operator()(ObjectEntry* entry) const;
    std::shared_ptr<NamespaceObjects> objects;  // keeps a deleted namespace's memory
  };
  std::unique_ptr<ObjectEntry, Unpin> entry_;
};

// The data of an object that are known without a pin on it.
struct ObjectInfo {
  uint64_t value_bytes = 0;
  uint64_t checksum = 0;
};

}  // namespace ems::server
