#include "mp_server/ssd/small_values.h"

#include <utility>

namespace ems::ssd {

void SmallValues::Except(std::set<NamespaceRef> namespaces) {
  auto excepted = excepted_.Lock();
  *excepted = std::move(namespaces);
}

bool SmallValues::Refuses(NamespaceRef ns, uint64_t value_bytes) {
  if (value_bytes >= options_.small_bytes) return false;
  const uint64_t objects_max = options_.objects_max;
  if (options_.index->objects() < objects_max - objects_max / 10) return false;
  const uint64_t stored_bytes = options_.index->totals().value_bytes;
  if (stored_bytes < objects_max * options_.small_bytes / 2) return false;
  auto excepted = excepted_.Lock();
  return !excepted->contains(ns);
}

}  // namespace ems::ssd
