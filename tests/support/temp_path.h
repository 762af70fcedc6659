#pragma once
// A name under the temporary folder that no other run of the test uses at the same time.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace ems::testing {

// Nothing is made there; what a test makes there goes with this. Threading: immutable.
class TempPath final {
 public:
  // `name` ends the path: its extension stays.
  explicit TempPath(std::string_view name)
      : path_(fmt::format("{}ems-{}-{}", ::testing::TempDir(), ::getpid(), name)) {}
  ~TempPath() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempPath(const TempPath&) = delete;
  TempPath& operator=(const TempPath&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace ems::testing
