#include "integrations/batches/memory_probe.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

namespace ems::batches {
namespace {

constexpr size_t kPage = 4096;

// Two pages, of which the second is as `protection` says.
class Pages {
 public:
  explicit Pages(int protection)
      : at_(static_cast<std::byte*>(::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(at_, MAP_FAILED);
    EXPECT_EQ(::mprotect(at_ + kPage, kPage, protection), 0);
  }
  ~Pages() { ::munmap(at_, 2 * kPage); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  MutableBytes part(size_t begin, size_t bytes) const { return {at_ + begin, bytes}; }

 private:
  std::byte* const at_;
};

Status Probe(MemoryUse use, MutableBytes part) {
  MemoryProbe probe(use);
  Status added = probe.Add(part);
  return added.ok() ? probe.Finish() : added;
}

TEST(MemoryProbeTest, MemoryOfThisProcessPassesAndStaysAsItIs) {
  std::vector<std::byte> memory(10'000, std::byte{7});
  EXPECT_EQ(Probe(MemoryUse::kRead, memory), OkStatus());
  EXPECT_EQ(Probe(MemoryUse::kWrite, memory), OkStatus());
  EXPECT_EQ(memory, std::vector<std::byte>(10'000, std::byte{7}));
  EXPECT_EQ(Probe(MemoryUse::kWrite, {}), OkStatus());
}

TEST(MemoryProbeTest, APartThatEndsWhereNothingIsMappedIsAnError) {
  const Pages pages(PROT_NONE);
  EXPECT_EQ(Probe(MemoryUse::kRead, pages.part(0, kPage)), OkStatus());
  EXPECT_EQ(Probe(MemoryUse::kRead, pages.part(0, kPage + 1)).code(), StatusCode::kInternal);
  EXPECT_EQ(Probe(MemoryUse::kRead, pages.part(kPage, 10)).code(), StatusCode::kInternal);
}

TEST(MemoryProbeTest, MemoryThatCannotBeWrittenCanBeRead) {
  const Pages pages(PROT_READ);
  EXPECT_EQ(Probe(MemoryUse::kRead, pages.part(kPage - 1, 2)), OkStatus());
  EXPECT_EQ(Probe(MemoryUse::kWrite, pages.part(kPage - 1, 2)).code(), StatusCode::kInternal);
}

TEST(MemoryProbeTest, ABadPartAmongMoreThanTheKernelTakesAtOnceIsFound) {
  const Pages pages(PROT_NONE);
  for (const size_t bad : {0, 511, 512, 1999}) {
    MemoryProbe probe(MemoryUse::kWrite);
    Status found = OkStatus();
    for (size_t i = 0; i < 2000 && found.ok(); ++i) {
      found = probe.Add(i == bad ? pages.part(kPage, 1) : pages.part(i, 2));
    }
    if (found.ok()) found = probe.Finish();
    EXPECT_EQ(found.code(), StatusCode::kInternal) << bad;
  }
}

}  // namespace
}  // namespace ems::batches
