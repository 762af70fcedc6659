#pragma once
// A map from the number of a memory to the memory. Look-ups take no lock.
//
// Bound: kMost memories. Insert hands an outgrown table to the owner, which frees it after a grace
// period, since a reader may still be in it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/check.h"
#include "fabric/shm/transport.h"

namespace ems::internal {

// Threading: Find from any thread (inside the gate that Erase's caller waits for); the rest on one.
class MemoryMap final {
 public:
  static constexpr uint64_t kMost = uint64_t{1} << 16;

  MemoryMap() { (void)Grow(kFirst); }

  // nullptr: none of this number. Cost: one or two cache lines.
  const fabric::RemoteMemory* Find(uint64_t id) const {
    const Table* const table = table_.load(std::memory_order_seq_cst);
    for (uint64_t i = Mix(id) & table->mask;; i = (i + 1) & table->mask) {
      const uint64_t name = table->slots[i].name.load(std::memory_order_acquire);
      if (name == id + 1) return table->slots[i].memory.load(std::memory_order_seq_cst);
      if (name == 0) return nullptr;
    }
  }

  // Adds one that is not there, below kMost. Whatever comes back may go after a grace period.
  [[nodiscard]] std::shared_ptr<const void> Insert(uint64_t id,
                                                   const fabric::RemoteMemory* memory) {
    EMS_CHECK(count_ < kMost, "{} memories", count_);
    std::shared_ptr<const void> outgrown;
    const uint64_t slots = owner_->mask + 1;
    // Names stay when their memory goes, until the table is rebuilt.
    if ((names_ + 1) * 2 > slots) outgrown = Grow(count_ * 4 > slots ? slots * 2 : slots);
    Put(owner_.get(), id, memory);
    ++count_;
    return outgrown;
  }
  void Erase(uint64_t id) {
    const Table* const table = owner_.get();
    for (uint64_t i = Mix(id) & table->mask;; i = (i + 1) & table->mask) {
      Slot& slot = table->slots[i];
      const uint64_t name = slot.name.load(std::memory_order_relaxed);
      if (name == 0) return;
      if (name != id + 1) continue;
      if (slot.memory.exchange(nullptr, std::memory_order_seq_cst) != nullptr) --count_;
      return;
    }
  }
  uint64_t size() const { return count_; }

 private:
  static constexpr uint64_t kFirst = 64;
  struct Slot {
    std::atomic<uint64_t> name{0};  // id + 1; stays when the memory goes
    std::atomic<const fabric::RemoteMemory*> memory{nullptr};
  };
  struct Table {
    uint64_t mask = 0;
    std::unique_ptr<Slot[]> slots;
  };
  static uint64_t Mix(uint64_t id) { return (id * 0x9e3779b97f4a7c15) >> 32; }

  void Put(Table* table, uint64_t id, const fabric::RemoteMemory* memory) {
    uint64_t i = Mix(id) & table->mask;
    while (true) {
      const uint64_t name = table->slots[i].name.load(std::memory_order_relaxed);
      if (name == 0 || name == id + 1) break;
      i = (i + 1) & table->mask;
    }
    Slot& slot = table->slots[i];
    slot.memory.store(memory, std::memory_order_release);
    if (slot.name.load(std::memory_order_relaxed) == 0) ++names_;
    slot.name.store(id + 1, std::memory_order_release);
  }
  std::shared_ptr<const void> Grow(uint64_t slots) {
    auto table = std::make_shared<Table>();
    table->mask = slots - 1;
    table->slots = std::make_unique<Slot[]>(slots);
    names_ = 0;
    for (uint64_t i = 0; owner_ != nullptr && i <= owner_->mask; ++i) {
      const Slot& old = owner_->slots[i];
      const auto* memory = old.memory.load(std::memory_order_relaxed);
      if (memory != nullptr) Put(table.get(), old.name.load() - 1, memory);
    }
    table_.store(table.get(), std::memory_order_seq_cst);
    return std::exchange(owner_, std::move(table));
  }

  std::atomic<const Table*> table_{nullptr};  // owner_'s
  std::shared_ptr<Table> owner_;
  uint64_t names_ = 0;  // slots in use, also by names whose memory went
  uint64_t count_ = 0;
};

}  // namespace ems::internal
