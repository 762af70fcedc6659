// What must hold: an empty buffer is harmless, and one gives its memory back exactly once.
#include "mp_sdk/staging_buffer.h"

#include <gtest/gtest.h>

#include "mp_sdk/internal/staging_memory.h"

namespace ems {
namespace {

TEST(StagingBufferTest, AnEmptyBufferHasNoBytes) {
  StagingBuffer buffer;
  EXPECT_TRUE(buffer.bytes().empty());
  StagingBuffer moved = std::move(buffer);
  moved.Release();
  EXPECT_TRUE(moved.bytes().empty());
}

TEST(StagingBufferTest, GivesItsMemoryBackOnce) {
  const auto memory = *internal::StagingMemory::Create(4096);
  {
    StagingBuffer first = *memory->Allocate(4096);
    first.Release();
    const StagingBuffer second = *memory->Allocate(4096);
    EXPECT_TRUE(first.bytes().empty());
  }  // first must not free what is second's
  EXPECT_TRUE(memory->Allocate(4096).ok());
}

}  // namespace
}  // namespace ems
