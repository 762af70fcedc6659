#pragma once
// Maps shared memory so that huge pages can back it, and asks the kernel for them.
//
// A memfd's pages are mapped 2 MiB at a time only where address and offset agree modulo 2 MiB,
// which mmap alone does not see to. Memory of huge pages is made several times faster, mapped by a
// second process at the cost of one fault for 512, and read with fewer misses of the TLB.
#include <cstdint>

namespace ems::fabric::internal {

// mmap(MAP_SHARED) of the whole file, which is `bytes` long. MAP_FAILED: errno says why.
void* MapShared(int fd, uint64_t bytes, int protection);

// Makes the pages of all whole 2 MiB units of [at, at + bytes), of a writable MapShared mapping, as
// huge pages. What is there stays as it is, and this is best effort: a caller that needs the pages
// to exist makes the rest. False: some are not huge, as far as the kernel says (it does since
// Linux 6.1). Works unless shmem_enabled below /sys/kernel/mm/transparent_hugepage is "deny";
// before Linux 6.1 it takes "advise" there, where the kernel's own default is "never". Cost: 0.1 to
// 0.3 ms a MiB that is new; blocks.
bool MakeHuge(void* at, uint64_t bytes);

// The 4 KiB page of an empty unit that is made small first, 0 to 511. The huge page comes from the
// NUMA node of that page, which depends on its number where nodes take turns: of the same one each
// time, were it at the same place of every unit.
constexpr uint32_t FirstPageOf(uint64_t unit) {
  return static_cast<uint32_t>(unit * 0x9e3779b97f4a7c15 >> 55);  // spread evenly, for any divisor
}

}  // namespace ems::fabric::internal
