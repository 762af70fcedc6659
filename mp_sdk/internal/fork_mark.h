#pragma once
// Tells a process from the child that it forked, for the price of a load.
//
// A child shares the memory that its parent shares with a server, hazards included: what it wrote
// there would be taken for its parent's. The mark lies in a page that the kernel empties in a child
// (MADV_WIPEONFORK, Linux 4.14; on an older kernel, or without a page to be had, a child looks like
// its parent).
#include <sys/mman.h>

#include <atomic>
#include <new>

namespace ems::internal {

// Threading: immutable.
class ForkMark final {
 public:
  ForkMark()
      : page_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED) return;
    (void)::madvise(page_, kBytes, MADV_WIPEONFORK);
    mark_ = std::construct_at(static_cast<std::atomic<int>*>(page_), 1);
  }
  ~ForkMark() {
    if (page_ != MAP_FAILED) ::munmap(page_, kBytes);
  }
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  // True in the process that made it.
  bool here() const { return mark_->load(std::memory_order_relaxed) != 0; }

 private:
  static constexpr size_t kBytes = 4096;
  void* page_;
  std::atomic<int> pageless_{1};
  std::atomic<int>* mark_ = &pageless_;
};

}  // namespace ems::internal
