// What must hold: the source gives out what lies in its folder, whole and in ranges, counts what it
// sent, and keeps to its rate.
#include "bench/model/paced_source.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "model_files/source/open_source.h"

namespace ems::bench {
namespace {

using std::chrono::seconds;

class PacedSourceTest : public ::testing::Test {
 protected:
  PacedSourceTest() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    for (size_t i = 0; i < content_.size(); ++i) content_[i] = static_cast<char>(i * 7);
    std::ofstream(folder_ + "/config.json", std::ios::binary) << "{}";
    std::ofstream(folder_ + "/model.safetensors", std::ios::binary) << content_;
  }
  ~PacedSourceTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = ::testing::TempDir() + "paced_source_XXXXXX";
  std::string content_ = std::string(1'000'000, '\0');
};

TEST_F(PacedSourceTest, GivesWhatItHasAndCountsIt) {
  auto server = PacedSource::Start(folder_, 0);
  ASSERT_TRUE(server.ok()) << server.status();
  auto source = model::OpenSource({.url = (*server)->url()});
  ASSERT_TRUE(source.ok()) << source.status();
  const auto files = (*source)->List(Deadline::After(seconds(10)));
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2U);
  EXPECT_EQ((*files)[1].bytes, content_.size());
  const uint64_t listed = (*server)->bytes_sent();
  std::string part(300'000, '\0');
  ASSERT_EQ((*source)->Read((*files)[1], 123'456, std::as_writable_bytes(std::span(part)),
                            Deadline::After(seconds(10))),
            OkStatus());
  EXPECT_EQ(part, content_.substr(123'456, 300'000));
  EXPECT_EQ((*server)->bytes_sent() - listed, part.size());
  // A file that has changed is not given out under its old tag.
  std::ofstream(folder_ + "/model.safetensors", std::ios::binary) << content_ << "more";
  EXPECT_EQ((*source)
                ->Read((*files)[1], 0, std::as_writable_bytes(std::span(part)),
                       Deadline::After(seconds(10)))
                .code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(PacedSourceTest, KeepsToItsRate) {
  auto server = PacedSource::Start(folder_, 2'000'000);
  ASSERT_TRUE(server.ok()) << server.status();
  auto source = model::OpenSource({.url = (*server)->url()});
  const auto files = (*source)->List(Deadline::After(seconds(10)));
  ASSERT_TRUE(files.ok()) << files.status();
  std::string whole(content_.size(), '\0');
  const TimePoint begin = Clock::System().Now();
  ASSERT_EQ((*source)->Read((*files)[1], 0, std::as_writable_bytes(std::span(whole)),
                            Deadline::After(seconds(30))),
            OkStatus());
  // Half a second at that rate, less what may come at once.
  EXPECT_GE(Clock::System().Now() - begin, std::chrono::milliseconds(350));
  EXPECT_EQ(whole, content_);
}

TEST_F(PacedSourceTest, WhatItDoesNotHaveIsMissing) {
  auto server = PacedSource::Start(folder_ + "/none", 0);
  ASSERT_TRUE(server.ok()) << server.status();
  auto source = model::OpenSource({.url = (*server)->url()});
  EXPECT_EQ((*source)->List(Deadline::After(seconds(10))).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::bench
