#pragma once
// A record of two namespaces, as a small server would write it.
#include <utility>
#include <vector>

#include "mp_server/memory/size_classes.h"
#include "mp_server/restart/hand_over_record.h"
#include "proto/shm_layout.h"

namespace ems::server {

// A slab and a run in one segment, a run in another.
inline HandOver SomeRecord() {
  const SizeClasses& classes = SizeClasses::Get();
  const Footprint small = classes.For(1000, 8), large = classes.For(kMiB, 8);
  const SizeClass& shape = classes.at(small.size_class);
  HandOver record;
  record.head.layout = LayoutFingerprint();
  record.head.number = 11;
  record.head.lineage = 12;
  record.segments = {{1, 100, 4 * kMiB, 5, 0}, {1, 101, 2 * kMiB, 6, 1}};
  record.namespaces = {{1, 71, 50, 2, 2}, {2, 72, 60, 1, 1}};
  const uint32_t pages = shape.slab_pages_short;
  record.runs = {{0, 0, pages, SizeClasses::ChunksIn(shape, pages), small.size_class, 0},
                 {0, pages, large.pages, 0, kRunClass, 0},
                 {1, 3, large.pages, 0, kRunClass, 0}};
  const auto at = [](uint64_t page) {
    return static_cast<uint32_t>(page * kPageBytes / shm::kOffsetUnit);
  };
  record.objects = {{0, at(0), 40, 1, 2, 1000, 3, 4, 5, 8, 6, 0},
                    {1, at(pages), 41, 7, 8, kMiB, 9, 10, 11, 8, 12, 0},
                    {2, at(3), 42, 13, 14, kMiB, 15, 16, 17, 8, 18, 0}};
  return record;
}

inline std::vector<std::byte> EncodedRecord(HandOver record) {
  std::vector<std::byte> bytes(record.size_bytes());
  record.Encode(bytes);
  return bytes;
}

}  // namespace ems::server
