#pragma once
// A piece of memory behind a sealed memfd: mapped here read-write, shared with others by
// descriptor.
//
// Invariant: all pages exist once Create has returned, and the size never changes (sealed), so
// touching the bytes can neither fault for want of memory nor pay for a first touch. The file has
// mode 0600 and is sealed against future writes: a process that receives its descriptor can neither
// write through it nor reopen it for writing, under this user or another; this mapping stays
// writable. A segment for a successor (Writers) has mode 0400 and lacks that seal, which the next
// process of this server could not map it with. Bound: exactly the bytes asked for, rounded up to
// 2 MiB (CreatePages: 4 KiB).
#include <cstdint>
#include <string_view>

#include "common/bytes.h"
#include "fabric/net/socket.h"
#include "fabric/shm/numa_nodes.h"

namespace ems::fabric {

inline constexpr uint64_t kHugePageBytes = 2 * kMiB;
inline constexpr int kSealFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE, which old headers lack

// kTry: hugetlb pages, then transparent huge pages, then 4 KiB. kRequire: hugetlb or an error.
// kOff: 4 KiB.
enum class HugePages : uint8_t { kTry, kRequire, kOff };

// Who may ever map a segment for writing. kSuccessor: this process, and one that is given fd().
// Who gets a descriptor of OpenReadOnly cannot write through it, nor reopen it unless it is root or
// this very user.
enum class Writers : uint8_t { kThisProcess, kSuccessor };

// The kind of pages behind the memory.
enum class PageKind : uint8_t { kHugetlb, kTransparent, kSmall };
// "hugetlb 2 MiB", "transparent 2 MiB", "4 KiB". The view points to static memory.
std::string_view PageKindName(PageKind kind);

// Sole owner of one memfd and its mapping. Move-only. Threading: immutable after Create; the bytes
// are the caller's matter.
class ShmSegment final {
 public:
  // Makes, touches and seals `bytes` (rounded up to 2 MiB), all zero.
  // Cost: page faults for all bytes, about 0.6 ms a MiB with 4 KiB pages, 0.1 with transparent huge
  // ones, shared by a thread a core, 8 at most; blocks. Call on a thread that may.
  // Errors: kResourceExhausted  the machine has no such memory (says how much, and what would help)
  //   kInvalidArgument  zero bytes    kInternal  a system call failed
  static Result<ShmSegment> Create(uint64_t bytes, HugePages huge_pages);
  // The same spread over NUMA nodes, as far as the kernel lets it; none: where the kernel likes.
  static Result<ShmSegment> CreateOn(const NumaNodes& nodes, uint64_t bytes, HugePages huge_pages,
                                     Writers writers = Writers::kThisProcess);
  // Maps the segment for a successor that another process has made, with what lies in it. `kind`:
  // what that one had, for statistics. Cost: no page is touched.
  // Errors: kInvalidArgument  not such a file: of another size, or one that could shrink
  //   kResourceExhausted  no room to map it
  static Result<ShmSegment> Adopt(Fd fd, uint64_t bytes, PageKind kind);
  // The same without its pages, which are made as they are touched: where there is no such memory,
  // that is a SIGBUS. To measure pools larger than the machine.
  static Result<ShmSegment> CreateSparse(uint64_t bytes);

  // The same for small things: rounded up to 4 KiB, of 4 KiB pages. With `peer_writes` a process
  // that gets fd() may write, too.
  static Result<ShmSegment> CreatePages(uint64_t bytes, bool peer_writes);
  // Tries what a hostile receiver of a descriptor would try. Errors: kFailedPrecondition  this
  // kernel does not enforce the seals; says what went through
  static Status CheckSealing(Writers writers = Writers::kThisProcess);

  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();

  MutableBytes bytes() const { return {data_, size_}; }
  uint64_t size_bytes() const { return size_; }
  PageKind page_kind() const { return page_kind_; }
  // From here on a write of this process to the bytes ends it (SIGSEGV). Errors: kInternal
  Status Protect() const;
  // Borrowed; read-write.
  int fd() const { return fd_; }
  // A descriptor to give away, through which nothing can be written. Errors: kInternal  no /proc,
  // or out of descriptors
  Result<Fd> OpenReadOnly() const;

 private:
  static Result<ShmSegment> CreateWith(const NumaNodes& nodes, uint64_t bytes, PageKind kind,
                                       Writers writers);
  Status Reserve(const NumaNodes& nodes, uint64_t bytes, PageKind kind);
  Status Map(uint64_t bytes, PageKind kind);
  Status MapFile(uint64_t bytes, PageKind kind);
  Status SealSize(bool others_write);
  void Close();

  int fd_ = -1;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  PageKind page_kind_ = PageKind::kSmall;
};

}  // namespace ems::fabric
