#pragma once
// A folder of this machine, or one that is mounted on it.
//
// Invariant: nothing outside of the folder is ever opened, however links and names change
// meanwhile: the kernel resolves each path beneath the folder's descriptor (openat2). Links that
// stay inside are followed to files; only regular files are read.
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model_files/source/bandwidth_cap.h"
#include "model_files/source/weight_source.h"

namespace ems::model {

// Threading: thread-safe; blocking. A file system that hangs holds a call beyond its deadline.
class FileSource final : public WeightSource {
 public:
  static constexpr int kDepthMax = 32;

  // Errors: kNotFound, kPermissionDenied  the folder cannot be opened    kInvalidArgument  no
  // folder
  static Result<std::unique_ptr<WeightSource>> Open(const SourceSpec& spec,
                                                    const std::string& folder);
  ~FileSource() override;

  Result<std::vector<SourceFile>> List(Deadline deadline) override;
  Status Read(const SourceFile& file, uint64_t offset, MutableBytes into,
              Deadline deadline) override;
  SourceCounters counters() const override {
    return {.bytes_read = bytes_read_.load(std::memory_order_relaxed)};
  }

 private:
  FileSource(const SourceSpec& spec, std::string folder, int root);
  struct Found {
    std::vector<SourceFile> files;
    size_t entries = 0;  // folders included
  };
  Status Walk(const std::string& below, int depth, Deadline deadline, Found* found);
  Result<SourceFile> Stat(const std::string& path) const;
  Status ReadPiece(int fd, const SourceFile& file, uint64_t offset, MutableBytes into,
                   Deadline deadline);
  Status Failed(int error, std::string_view path) const;

  const std::vector<std::string> files_;
  const std::string folder_;
  const int root_;
  const std::shared_ptr<StopFlag> stop_;  // may be null
  BandwidthCap cap_;
  std::atomic<uint64_t> bytes_read_{0};  // a counter alone: relaxed
};

}  // namespace ems::model
