// What must hold: a place is opened once and shared, apart for each stream; folders are read below
// the root alone; what is dropped ends its reads, and can be opened again.
#include "mp_server/models/model_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/mp_controller/temp_dir.h"

namespace ems::server {
namespace {

using ::testing::HasSubstr;

model::ManifestSource Http(const std::string& folder) {
  return {.url = "http://127.0.0.1:9/" + folder + "/",
          .credentials = {},
          .bytes_per_s_max = 0,
          .first_read = model::FirstRead::kOnce};
}

TEST(ModelSourcesTest, APlaceIsSharedAndStreamsAreNot) {
  ModelSources sources({.connections_max = 2, .credentials_file = {}, .file_root = {}});
  const auto one = sources.Open(Http("a"), 0);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(sources.Open(Http("a"), 0).value(), *one);
  EXPECT_NE(sources.Open(Http("a"), 1).value(), *one);
  EXPECT_NE(sources.Open(Http("b"), 0).value(), *one);
}

TEST(ModelSourcesTest, WhatIsForgottenIsOpenedAnew) {
  ModelSources sources({.connections_max = 2, .credentials_file = {}, .file_root = {}});
  const auto zero = sources.Open(Http("a"), 0), one = sources.Open(Http("a"), 1);
  ASSERT_TRUE(zero.ok() && one.ok());
  sources.Forget(Http("a"));
  EXPECT_NE(sources.Open(Http("a"), 0).value(), *zero);
  EXPECT_NE(sources.Open(Http("a"), 1).value(), *one);
}

TEST(ModelSourcesTest, WhatIsDroppedEndsItsReadsAndCanBeOpenedAgain) {
  ModelSources sources({.connections_max = 2, .credentials_file = {}, .file_root = {}});
  const auto gone = sources.Open(Http("a"), 0), kept = sources.Open(Http("b"), 0);
  ASSERT_TRUE(gone.ok() && kept.ok());
  sources.Drop({Http("a"), Http("b")}, {Http("b")});
  EXPECT_EQ((*gone)->List(Deadline::After(std::chrono::seconds(10))).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(sources.Open(Http("b"), 0).value(), *kept);
  const auto again = sources.Open(Http("a"), 0);
  ASSERT_TRUE(again.ok());
  EXPECT_NE(*again, *gone);
  sources.Close();
  EXPECT_EQ((*again)->List(Deadline::After(std::chrono::seconds(10))).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(sources.Open(Http("c"), 0).status().code(), StatusCode::kCancelled);
}

TEST(ModelSourcesTest, WhatHasComeFromAPlaceIsCountedOverItsStreams) {
  const controller::TempDir dir;
  std::ofstream(std::filesystem::path(dir.path()) / "f") << "bytes";
  const model::ManifestSource place = {.url = dir.path(), .credentials = {}, .bytes_per_s_max = 0};
  ModelSources sources({.connections_max = 2, .credentials_file = {}, .file_root = dir.path()});
  EXPECT_EQ(sources.BytesRead(place), 0U);
  for (uint32_t stream = 0; stream < 2; ++stream) {
    const auto source = sources.Open(place, stream);
    ASSERT_TRUE(source.ok()) << source.status();
    const Deadline deadline = Deadline::After(std::chrono::seconds(10));
    const auto files = (*source)->List(deadline);
    ASSERT_TRUE(files.ok()) << files.status();
    std::string into(5, '.');
    ASSERT_EQ((*source)->Read(files->at(0), 0, std::as_writable_bytes(std::span(into)), deadline),
              OkStatus());
  }
  EXPECT_EQ(sources.BytesRead(place), 10U);
  sources.Forget(place);
  EXPECT_EQ(sources.BytesRead(place), 0U);
}

TEST(ModelSourcesTest, FoldersAreReadBelowTheRootAlone) {
  const controller::TempDir dir;
  const auto open = [&](const std::string& root, const std::string& folder) {
    ModelSources sources({.connections_max = 2, .credentials_file = {}, .file_root = root});
    return sources.Open({.url = folder, .credentials = {}, .bytes_per_s_max = 0}, 0).status();
  };
  EXPECT_EQ(open(dir.path(), dir.path()), OkStatus());
  EXPECT_EQ(open(dir.path(), "/").code(), StatusCode::kPermissionDenied);
  const std::string above = std::filesystem::path(dir.path()).parent_path();
  EXPECT_EQ(open(dir.path(), above).code(), StatusCode::kPermissionDenied);
  const Status none = open("", dir.path());
  EXPECT_EQ(none.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(Message(none)), HasSubstr("models.file_root"));
}

}  // namespace
}  // namespace ems::server
