// What must hold: the files are proper safetensors with their index, of about the size asked for,
// and the hash is that of their bytes by path.
#include "bench/model/model_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "common/bytes.h"
#include "common/hash.h"
#include "model_files/format/safetensors.h"

namespace ems::bench {
namespace {

TEST(ModelFilesTest, AreSafetensorsAndHashedByPath) {
  std::string folder = ::testing::TempDir() + "model_files_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto made = MakeModel(folder, 12 * kMiB, 7);
  ASSERT_TRUE(made.ok()) << made.status();
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  ASSERT_EQ(files.size(), 4U);
  Hash64Stream hash;
  hash.Reset();
  uint64_t bytes = 0;
  size_t tensors = 0;
  for (const auto& [name, content] : files) {
    hash.Update(AsBytes(content));
    bytes += content.size();
    if (!name.ends_with(".safetensors")) continue;
    const auto parsed = model::ParseSafetensors(AsBytes(content), content.size(), name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_TRUE(parsed->done());
    tensors += parsed->table.tensors.size();
  }
  EXPECT_EQ(tensors, 3U);
  EXPECT_EQ(made->bytes, bytes);
  EXPECT_EQ(made->hash, hash.Digest());
  EXPECT_NE(MakeModel(folder, 12 * kMiB, 8)->hash, made->hash);
  EXPECT_EQ(MakeModel(folder, 12 * kMiB, 7)->hash, made->hash);
  EXPECT_EQ(MakeModel(folder + "/none", 12 * kMiB, 7).status().code(), StatusCode::kInternal);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ems::bench
