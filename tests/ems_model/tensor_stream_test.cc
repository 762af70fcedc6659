// What must hold: each wanted slice comes once, complete, as naive slicing has it, wherever blocks
// are cut and in whatever order they come; in file order if that is asked for.
#include "ems_model/tensor_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "model_files/format/safetensors.h"
#include "tests/support/memory_model.h"

namespace ems::model {
namespace {

using testing::MadeTensor;

// Element by element: the slice of a row-major tensor of 2-byte elements along `axis`.
std::string NaiveSlice(const MadeTensor& tensor, const SliceSpec& spec) {
  const std::string data = tensor.data();
  const uint64_t extent = tensor.shape[spec.axis];
  uint64_t inner = 1;
  for (size_t d = spec.axis + 1; d < tensor.shape.size(); ++d) inner *= tensor.shape[d];
  std::string slice;
  for (uint64_t element = 0; element < data.size() / 2; ++element) {
    const uint64_t index = element / inner % extent;
    if (index / (extent / spec.ranks) == spec.rank) slice += data.substr(2 * element, 2);
  }
  return slice;
}

struct OneFile {
  explicit OneFile(std::vector<MadeTensor> made_in)
      : made(std::move(made_in)), bytes(testing::TensorFile(made)) {
    table = ParseSafetensors(AsBytes(bytes), bytes.size(), "f").value().table;
    files.push_back({.path = "f", .bytes = bytes.size(), .table = &table});
  }
  // Blocks of `block` bytes in a shuffled order, as a load would bring them.
  Status Bring(LoadTarget* target, uint64_t block, uint32_t seed) {
    std::vector<uint64_t> offsets;
    for (uint64_t at = 0; at < bytes.size(); at += block) offsets.push_back(at);
    std::shuffle(offsets.begin(), offsets.end(), std::mt19937(seed));
    for (const uint64_t at : offsets) {
      const uint64_t size = std::min(block, bytes.size() - at);
      const uint64_t wants = target->Wants(0, at, size);
      if (wants == 0) continue;
      std::vector<LoadRange> ranges;
      EMS_RETURN_IF_ERROR(target->Place(0, at, size, &ranges));
      uint64_t placed = 0;
      for (const LoadRange& range : ranges) {
        EXPECT_GE(range.offset, at);
        EXPECT_LE(range.offset + range.into.size(), at + size);
        placed += range.into.size();
        std::memcpy(range.into.data(), bytes.data() + range.offset, range.into.size());
      }
      EXPECT_EQ(placed, wants);
      EMS_RETURN_IF_ERROR(target->Arrived(0, at, size));
    }
    return OkStatus();
  }
  std::vector<MadeTensor> made;
  std::string bytes;
  TensorTable table;
  std::vector<LoadFile> files;
};

TEST(TensorStreamTest, SlicesAreThoseOfNaiveSlicing) {
  OneFile file({{.name = "rows", .shape = {8, 33}},
                {.name = "cube", .shape = {3, 8, 5}},
                {.name = "deep", .shape = {2, 3, 4, 8}}});
  for (const uint32_t ranks : {1U, 2U, 4U}) {
    for (const uint64_t block : {7U, 64U, 100'000U}) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(fmt::format("rank {} of {}, blocks of {}", rank, ranks, block));
        const auto spec_of = [&](std::string_view name) {
          const uint32_t axis = name == "rows" ? 0 : name == "cube" ? 1 : 3;
          return SliceSpec{.axis = axis, .rank = rank, .ranks = ranks};
        };
        TensorStream::Options options;
        options.choose = [&](std::string_view, const TensorInfo& info) {
          return std::optional(spec_of(info.name));
        };
        std::map<std::string, std::string> got;
        TensorStream stream(options, [&](const LoadedTensor& tensor) {
          EXPECT_TRUE(got.emplace(tensor.info->name, AsText(tensor.bytes)).second);
          return OkStatus();
        });
        ASSERT_TRUE(stream.Begin(file.files).ok());
        ASSERT_TRUE(file.Bring(&stream, block, rank + 1).ok());
        ASSERT_TRUE(stream.End(OkStatus()).ok());
        ASSERT_EQ(got.size(), 3U);
        for (const MadeTensor& tensor : file.made)
          EXPECT_TRUE(got[tensor.name] == NaiveSlice(tensor, spec_of(tensor.name))) << tensor.name;
      }
    }
  }
}

TEST(TensorStreamTest, InFileOrderNothingComesBeforeItsTurn) {
  std::vector<MadeTensor> made;
  for (int i = 0; i < 20; ++i) made.push_back({.name = fmt::format("t{:02}", i), .shape = {50}});
  made.push_back({.name = "t99.empty", .shape = {0}});
  OneFile file(made);
  TensorStream::Options options;
  options.order = TensorOrder::kFile;
  std::vector<std::string> names;
  TensorStream stream(options, [&](const LoadedTensor& tensor) {
    names.push_back(tensor.info->name);
    return OkStatus();
  });
  ASSERT_TRUE(stream.Begin(file.files).ok());
  ASSERT_TRUE(file.Bring(&stream, 30, 5).ok());
  ASSERT_TRUE(stream.End(OkStatus()).ok());
  ASSERT_EQ(names.size(), made.size());
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(names[i], made[i].name);
}

TEST(TensorStreamTest, UnwantedTensorsAndOpaqueFilesAreNotRead) {
  OneFile file({{.name = "a", .shape = {100}}, {.name = "b", .shape = {100}}});
  file.files.push_back({.path = "notes.txt", .bytes = 10, .table = nullptr});
  TensorStream::Options options;
  options.choose = [](std::string_view, const TensorInfo& info) {
    return info.name == "b" ? std::optional(SliceSpec{}) : std::nullopt;
  };
  TensorStream stream(options, [](const LoadedTensor&) { return OkStatus(); });
  ASSERT_TRUE(stream.Begin(file.files).ok());
  EXPECT_EQ(stream.Wants(0, 0, file.bytes.size()), 200U);
  EXPECT_EQ(stream.Wants(0, 0, file.bytes.size() - 200), 0U);
  EXPECT_EQ(stream.Wants(1, 0, 10), 0U);
}

TEST(TensorStreamTest, TheCallersMemoryIsUsed) {
  OneFile file({{.name = "a", .shape = {100}}});
  std::string room(200, '\0');
  TensorStream::Options options;
  options.room = [&](std::string_view, const TensorInfo&, const TensorSlice& slice) {
    return Result<MutableBytes>(std::as_writable_bytes(std::span(room)).subspan(0, slice.bytes));
  };
  TensorStream stream(options, [&](const LoadedTensor& tensor) {
    EXPECT_EQ(static_cast<void*>(tensor.bytes.data()), room.data());
    EXPECT_EQ(tensor.memory.data(), nullptr);
    return OkStatus();
  });
  ASSERT_TRUE(stream.Begin(file.files).ok());
  ASSERT_TRUE(file.Bring(&stream, 33, 1).ok());
  EXPECT_TRUE(room == file.made[0].data());

  options.room = [&](std::string_view, const TensorInfo&, const TensorSlice&) {
    return Result<MutableBytes>(std::as_writable_bytes(std::span(room)).subspan(0, 199));
  };
  TensorStream small(options, [](const LoadedTensor&) { return OkStatus(); });
  EXPECT_EQ(small.Begin(file.files).code(), StatusCode::kInvalidArgument);
}

TEST(TensorStreamTest, ASliceThatCannotBeCutIsRefusedBeforeAnythingIsRead) {
  OneFile file({{.name = "a", .shape = {10, 3}}});
  TensorStream::Options options;
  options.choose = [](std::string_view, const TensorInfo&) {
    return std::optional(SliceSpec{.axis = 1, .rank = 0, .ranks = 2});
  };
  TensorStream stream(options, [](const LoadedTensor&) { return OkStatus(); });
  EXPECT_EQ(stream.Begin(file.files).code(), StatusCode::kInvalidArgument);
}

TEST(TensorStreamTest, MemoryGoesToTheTaker) {
  OneFile file({{.name = "a", .shape = {1000}}});
  TensorMemory kept;
  {
    TensorStream stream({}, [&](LoadedTensor tensor) {
      kept = std::move(tensor.memory);
      return OkStatus();
    });
    ASSERT_TRUE(stream.Begin(file.files).ok());
    ASSERT_TRUE(file.Bring(&stream, 512, 1).ok());
  }
  ASSERT_NE(kept.data(), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.data()) % 64, 0U);
  EXPECT_EQ(std::memcmp(kept.data(), file.made[0].data().data(), 2000), 0);
}

}  // namespace
}  // namespace ems::model
