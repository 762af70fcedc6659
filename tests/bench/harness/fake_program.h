#pragma once
// Programs that a bench would start, as shell scripts: what they were told is in PROGRAM.told.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace ems::bench {

// A folder for one test, removed with it.
class ProgramFolder final {
 public:
  ProgramFolder() {
    char path[] = "/tmp/ems-programs-XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    path_ = path;
  }
  ~ProgramFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ProgramFolder(const ProgramFolder&) = delete;
  ProgramFolder& operator=(const ProgramFolder&) = delete;
  const std::string& path() const { return path_; }

  // A script that notes its arguments, of which the second is the ready file, and does the rest.
  std::string Add(const std::string& name, const std::string& rest) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\necho \"$@\" >> \"$0.told\"\n" << rest << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  // One that is ready at once, and stays until it is ended.
  std::string AddDaemon(const std::string& name, const std::string& ready) const {
    return Add(name, "echo '" + ready + "' > \"$2\"\nexec sleep 1000");
  }
  std::string Told(const std::string& name) const {
    std::ifstream file(path_ + "/" + name + ".told");
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_;
};

}  // namespace ems::bench
