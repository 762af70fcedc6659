#pragma once
// The simplest possible client of a shared index: maps what it is given and looks keys up, with
// none of the checks that concurrency needs. For tests in one thread.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <optional>
#include <string_view>

#include "common/object_key.h"
#include "fabric/net/socket.h"
#include "proto/shm_layout.h"

namespace ems::server {

// A read-only mapping of a descriptor. Threading: one thread.
class Mapping final {
 public:
  Mapping(const fabric::Fd& fd, uint64_t bytes, bool writable = false) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                   fd.get(), 0);
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const std::byte* data() const { return static_cast<const std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_;
};

struct SharedEntry {
  uint64_t generation_tag = 0;
  uint64_t location = 0;
};

// Where `hash` is by this table; nullopt: nowhere.
inline std::optional<SharedEntry> LookUp(const Mapping& table, Hash128 hash) {
  const uint64_t buckets = table.size() / shm::kIndexShards / sizeof(shm::IndexBucket);
  const shm::IndexPlace place = shm::PlaceOf(hash, buckets);
  const auto* all = reinterpret_cast<const shm::IndexBucket*>(table.data());
  for (const uint64_t bucket : {place.first, place.second}) {
    for (const shm::IndexEntry& entry : all[place.shard * buckets + bucket].entries) {
      const uint64_t word = entry.generation_tag.load();
      if (word != 0 && (word & 0xff) == (hash.lo & 0xff))
        return SharedEntry{word, entry.location.load()};
    }
  }
  return std::nullopt;
}

}  // namespace ems::server
