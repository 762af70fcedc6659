#pragma once
// Values that are not worth their entries in the index while its memory is scarce.
//
// Where memory has room for fewer objects than the disk, the last tenth of it is for values of
// which so many fill the disk, and for namespaces that have not filled what they have reserved. It
// is not kept free where nearly all are small: regions go for more of them, as on a full disk.
#include <cstdint>
#include <set>

#include "common/guarded.h"
#include "common/ids.h"
#include "mp_server/ssd/ssd_index.h"

namespace ems::ssd {

// Threading: thread-safe.
class SmallValues final {
 public:
  struct Options {
    const SsdIndex* index = nullptr;  // must outlive this
    uint64_t objects_max = UINT64_MAX;
    uint64_t small_bytes = 0;  // objects_max of this size fill the disk; 0: none is too small
  };
  explicit SmallValues(const Options& options) : options_(options) {}
  // small_bytes, where the disk of so many bytes has room for `rows_max` objects.
  static uint64_t BytesFor(uint64_t disk_bytes, uint64_t objects_max, uint64_t rows_max) {
    return objects_max < rows_max ? disk_bytes / objects_max : 0;
  }

  // Values of these namespaces are never too small.
  void Except(std::set<NamespaceRef> namespaces);
  // Cost: O(1); once the index is nearly full, one leaf lock for each of its parts.
  bool Refuses(NamespaceRef ns, uint64_t value_bytes);

 private:
  const Options options_;
  Guarded<std::set<NamespaceRef>> excepted_;
};

}  // namespace ems::ssd
